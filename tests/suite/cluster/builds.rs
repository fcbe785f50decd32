//! Policies whose tables take long to compile: that happens on another thread, and nobody
//! waits for it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use counterpoise::{
    Balance, Builder, Direct, Health, discover,
    observe::EndpointState,
    policy::{Members, Needs, Policy},
};
use tower::{Service, ServiceExt};

use crate::support::{Act, Answer, Rotation, Site, Sites};

/// Round robin whose compile waits for a word, once it is told to.
#[derive(Clone)]
struct Slow {
    waits: Arc<AtomicBool>,
    word: Arc<Mutex<mpsc::Receiver<()>>>,
    begun: Arc<Mutex<mpsc::Sender<()>>>,
}

impl Policy for Slow {
    type Picker = Rotation;

    fn build(&self, _members: &Members<'_>, _previous: Option<&Rotation>) -> Rotation {
        if self.waits.swap(false, Ordering::SeqCst) {
            self.begun.lock().unwrap().send(()).unwrap();
            self.word.lock().unwrap().recv().unwrap();
        }
        Rotation
    }

    fn needs(&self) -> Needs {
        Needs::none().slow_build()
    }
}

async fn call(balance: &mut Balance<Direct<Site>, Slow>) -> Result<Answer, counterpoise::Error> {
    balance.ready().await?.call(()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_health_go_on_while_a_table_is_compiled() {
    let (say, word) = mpsc::channel();
    let (begun, has_begun) = mpsc::channel();
    let slow = Slow {
        waits: Arc::default(),
        word: Arc::new(Mutex::new(word)),
        begun: Arc::new(Mutex::new(begun)),
    };
    let sites = Sites::new(&["a", "b", "c"]);
    let (handle, changes) = discover::channel();
    let health = Health::new().consecutive_failures(1);
    let builder = Builder::new().health(health).starting_at(0);
    let mut balance = builder.balance(changes, slow.clone()).unwrap();
    handle.set([("a", sites["a"].endpoint()), ("b", sites["b"].endpoint())]);
    balance.ready_when(2).await.unwrap();

    slow.waits.store(true, Ordering::SeqCst);
    // At once, so that all of it is one batch.
    handle.set([
        ("a", sites["a"].endpoint().weight(7)),
        ("b", sites["b"].endpoint()),
        ("c", sites["c"].endpoint()),
    ]);
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap())
        .await
        .unwrap();
    // The compile has begun, and waits. Calls are served by the set before.
    for _ in 0..10 {
        assert_ne!(call(&mut balance).await.unwrap(), Answer::From("c"));
    }
    // Health goes through the door meanwhile.
    sites["b"].act(Act::Err);
    while call(&mut balance).await.is_ok() {}
    let stats = balance.stats();
    assert_eq!(stats.endpoint("b").unwrap().state, EndpointState::Ejected);
    assert_eq!(
        (stats.endpoints.len(), stats.endpoint("a").unwrap().weight),
        (2, 1)
    );

    say.send(()).unwrap();
    balance.ready_when(3).await.unwrap();
    let stats = balance.stats();
    assert_eq!(stats.endpoint("b").unwrap().state, EndpointState::Ejected);
    assert_eq!(stats.endpoint("a").unwrap().weight, 7);
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(call(&mut balance).await.unwrap());
    }
    let of = |name| {
        answers
            .iter()
            .filter(|answer| **answer == Answer::From(name))
            .count()
    };
    assert_eq!((of("a"), of("c")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_come_during_a_compile_are_applied_after_it() {
    let (say, word) = mpsc::channel();
    let (begun, has_begun) = mpsc::channel();
    let slow = Slow {
        waits: Arc::new(AtomicBool::new(true)),
        word: Arc::new(Mutex::new(word)),
        begun: Arc::new(Mutex::new(begun)),
    };
    let sites = Sites::new(&["a", "b", "c"]);
    let (handle, changes) = discover::channel();
    // The first compile, of the empty set, is made at once and says so.
    say.send(()).unwrap();
    let balance = Builder::new().balance(changes, slow.clone()).unwrap();
    has_begun.recv().unwrap();
    slow.waits.store(true, Ordering::SeqCst);
    handle.insert("a", sites["a"].endpoint());
    let has_begun = tokio::task::spawn_blocking(move || {
        has_begun.recv().unwrap();
        has_begun
    });
    let _has_begun = has_begun.await.unwrap();
    handle.remove(&"a");
    handle.insert("b", sites["b"].endpoint());
    handle.insert("c", sites["c"].endpoint());
    say.send(()).unwrap();
    balance.ready_when(2).await.unwrap();
    let names: Vec<_> = balance
        .stats()
        .endpoints
        .iter()
        .map(|endpoint| endpoint.name.to_string())
        .collect();
    assert_eq!(names, ["b", "c"]);
}
