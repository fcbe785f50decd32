//! The balancer as a service of tower: its types, and the layers above.

use std::{cell::Cell, marker::PhantomPinned, pin::pin, rc::Rc, time::Duration};

use counterpoise::{
    Attempts, AttemptsLayer, Balance, BalanceLayer, Builder, Direct, Endpoint, Error,
    call::{AtHead, ResponseFuture},
    discover,
    error::ErrorKind,
    health::ErrorsAreFailures,
    policy::{Picker, Policy, RoundRobin},
};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn, timeout::error::Elapsed,
    util::BoxCloneSyncService,
};

use crate::{
    probes::{Gate, answers, call, for_each_policy, probes},
    support::{Act, Answer, Broken, Site, retries::Retries, settle},
};

// ===== types =====

/// A request that can do nothing but be moved.
struct Bare {
    number: u32,
    _unsync: Cell<()>,
    _unpin: PhantomPinned,
}

#[tokio::test(start_paused = true)]
async fn requests_need_neither_clone_nor_sync_nor_unpin() {
    async fn case<P: Policy<Picker: Picker<Bare>>>(policy: P) {
        let double = service_fn(async |bare: Bare| Ok::<_, Broken>(2 * bare.number));
        let (handle, changes) = discover::channel();
        let mut balance = Builder::new().balance(changes, policy).unwrap();
        let bare = || Bare {
            number: 21,
            _unsync: Cell::new(()),
            _unpin: PhantomPinned,
        };
        let waiting = tokio::spawn(balance.ready().await.unwrap().call(bare()));
        settle().await;
        handle.insert("a", Endpoint::new(Direct(double)));
        assert_eq!(waiting.await.unwrap().unwrap(), 42);
        assert_eq!(
            balance.ready().await.unwrap().call(bare()).await.unwrap(),
            42
        );
    }
    case(counterpoise::policy::RoundRobin::new()).await;
    case(counterpoise::policy::ModuloRoundRobin::new()).await;
    case(counterpoise::policy::BoxPolicy::new(RoundRobin::new())).await;
}

#[tokio::test(start_paused = true)]
async fn requests_need_not_be_send() {
    let count = service_fn(async |rc: Rc<u32>| Ok::<_, Broken>(*rc + 1));
    let list = discover::list([("a", Endpoint::new(Direct(count)))]);
    let mut balance = Balance::new(list, RoundRobin::new());
    let call = pin!(balance.ready().await.unwrap().call(Rc::new(1)));
    assert_eq!(call.await.unwrap(), 2);
}

const fn is_send<T: Send>() {}
const fn is_send_sync_clone<T: Send + Sync + Clone + 'static>() {}
const fn is_unpin<T: Unpin>() {}

type Reqwest = Balance<counterpoise::http::Origin, RoundRobin, reqwest::Client>;
type Tonic = Balance<Direct<tonic::transport::Channel>, RoundRobin>;

const _: () = {
    is_send_sync_clone::<Reqwest>();
    is_send_sync_clone::<Tonic>();
    is_send_sync_clone::<BalanceLayer<counterpoise::http::Origin, RoundRobin>>();
    is_send_sync_clone::<Builder>();
    is_send_sync_clone::<discover::Handle<String, Direct<Site>>>();
    is_send::<discover::Changes<String, Direct<Site>>>();
    is_send::<<Reqwest as Service<reqwest::Request>>::Future>();
    is_send::<<Tonic as Service<http::Request<tonic::body::Body>>>::Future>();
    is_send::<ResponseFuture<(), Direct<Site>, RoundRobin, ()>>();
    is_unpin::<ResponseFuture<(), Direct<Site>, RoundRobin, ()>>();
    is_send_sync_clone::<Attempts>();
    is_send::<Error>();
};

#[tokio::test(start_paused = true)]
async fn works_under_the_layers_of_tower_and_in_a_box() {
    async fn case<P: Policy<Picker: Picker<()>>>(policy: P) {
        let [a, b] = probes([Gate::Open, Gate::Open]);
        a.act(Act::Err);
        let list = discover::list([("a", a.endpoint()), ("b", b.endpoint())]);
        let layer = Builder::new().starting_at(0).layer(list, policy).unwrap();
        let stack = ServiceBuilder::new()
            .buffer(8)
            .timeout(Duration::from_secs(1))
            .layer(AttemptsLayer::new())
            .retry(Retries::new(1))
            .layer(layer.clone())
            .service(());
        let mut boxed: BoxCloneSyncService<(), Answer, BoxError> = BoxCloneSyncService::new(stack);
        assert_eq!(answers(&mut boxed.clone(), 4).await, ["p2"; 4]);
        b.act(Act::Err);
        let error = call(&mut boxed).await.unwrap_err();
        let error = error.downcast_ref::<Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::Call);
        b.act(Act::Hang);
        assert!(call(&mut boxed).await.unwrap_err().is::<Elapsed>());
        assert!(
            layer
                .stats()
                .endpoints
                .iter()
                .all(|endpoint| endpoint.in_flight == 0)
        );
    }
    for_each_policy!(case);
}

#[tokio::test(start_paused = true)]
async fn a_layer_hands_its_client_to_the_target() {
    struct Shard(u32);
    impl<C: Clone> counterpoise::Target<C> for Shard {
        type Service = tower::util::MapRequest<C, Box<dyn Fn(u32) -> u32 + Send>>;
        type Judge = AtHead<ErrorsAreFailures>;

        fn attach(&self, client: &C) -> Self::Service {
            let shard = self.0;
            tower::util::MapRequest::new(client.clone(), Box::new(move |n| n + shard))
        }
    }
    let list = discover::list([
        ("a", Endpoint::new(Shard(10))),
        ("b", Endpoint::new(Shard(20))),
    ]);
    let layer = Builder::new()
        .starting_at(0)
        .layer(list, RoundRobin::new())
        .unwrap();
    let client = service_fn(async |n: u32| Ok::<_, Broken>(n));
    let mut balance = layer.layer(client);
    for want in [11, 21, 11] {
        assert_eq!(balance.ready().await.unwrap().call(1).await.unwrap(), want);
    }
}
