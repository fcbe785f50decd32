//! Tier, zone and labels: data that policies, events, statistics and log events see.

use std::sync::{Arc, Mutex};

use counterpoise::{
    Builder, Direct, Endpoint, Event, discover,
    policy::{Members, PickContext, PickResult, Picker, Policy},
};

use crate::{
    probes::answers,
    support::{Site, Sites, settle},
};

/// Picks the members of one rack, if there are any.
struct Rack(&'static str);

struct RackPicker(Vec<usize>);

impl Policy for Rack {
    type Picker = RackPicker;

    fn build(&self, members: &Members<'_>, _previous: Option<&RackPicker>) -> RackPicker {
        let here = |&(_, member): &(usize, &counterpoise::policy::Member)| {
            member.label("rack") == Some(self.0)
                && member.zone() == Some("north")
                && member.tier() == 2
        };
        let members = members.iter().enumerate().filter(here);
        RackPicker(members.map(|(index, _)| index).collect())
    }
}

impl<Req: ?Sized> Picker<Req> for RackPicker {
    fn pick(&self, _request: &Req, cx: &PickContext<'_>) -> PickResult {
        let first = self.0.iter().find(|&&index| cx.accepts(index));
        first.map_or(PickResult::Any, |&index| PickResult::Member(index))
    }
}

fn placed(site: &Site, rack: &str) -> Endpoint<Direct<Site>> {
    site.endpoint().tier(2).zone("north").label("rack", rack)
}

#[tokio::test(start_paused = true)]
async fn a_policy_an_event_and_the_statistics_see_what_discovery_says() {
    let sites = Sites::new(&["a", "b", "c"]);
    let (handle, changes) = discover::channel();
    let joined = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&joined);
    let builder = Builder::new().on_event(move |event| {
        if let Event::Joined {
            endpoint,
            tier,
            zone,
            labels,
            ..
        } = event
        {
            noted
                .lock()
                .unwrap()
                .push(format!("{endpoint} {tier} {zone:?} {labels}"));
        }
    });
    let mut balance = builder.balance(changes, Rack("r1")).unwrap();
    handle.insert("a", sites["a"].endpoint());
    handle.insert("b", placed(&sites["b"], "r1").label("disk", "ssd"));
    handle.insert("c", placed(&sites["c"], "r2"));
    settle().await;
    assert_eq!(answers(&mut balance, 3).await, ["b"; 3]);
    let want = [
        "a 0 None ",
        "b 2 Some(\"north\") disk=ssd,rack=r1",
        "c 2 Some(\"north\") rack=r2",
    ];
    assert_eq!(*joined.lock().unwrap(), want);

    // A new label moves the calls, and is no new endpoint.
    handle.insert("b", placed(&sites["b"], "r2"));
    handle.insert("c", placed(&sites["c"], "r1"));
    settle().await;
    assert_eq!(answers(&mut balance, 3).await, ["c"; 3]);
    let stats = balance.stats();
    let b = stats.endpoint("b").unwrap();
    assert_eq!(
        (b.tier, b.zone.as_deref(), b.labels.get("rack")),
        (2, Some("north"), Some("r2"))
    );
    assert_eq!(b.labels.get("disk"), None, "labels are replaced as a whole");
    assert_eq!(joined.lock().unwrap().len(), 3);
}
