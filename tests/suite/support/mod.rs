//! What many tests share.

mod answer;
pub(crate) mod bed;
pub(crate) mod body_bed;
pub(crate) mod fleet;
pub(crate) mod keyed_bed;
pub(crate) mod probes;
pub(crate) mod retries;
pub(crate) mod servers;
mod service;
pub(crate) mod table;

use std::{collections::HashMap, sync::Arc};

use counterpoise::{
    Attempts, Direct, discover,
    policy::{PickContext, PickResult, Picker},
};
use futures::FutureExt;
use tower::Service;

pub(crate) use answer::{Answer, Broken, Text};
pub(crate) use service::{Act, Gate, Request, Scripted};

/// An endpoint that is called by a word and takes requests without content.
pub(crate) type Site = Scripted;

/// The sites of a test, by name.
pub(crate) struct Sites(HashMap<&'static str, Site>);

impl Sites {
    pub(crate) fn new(names: &[&'static str]) -> Self {
        Self(names.iter().map(|&name| (name, Site::new(name))).collect())
    }

    /// Returns their discovery: all of them, each with weight 1, in the order of `names`.
    pub(crate) fn list(
        &self,
        names: &[&'static str],
    ) -> discover::List<&'static str, Direct<Site>> {
        discover::list(
            names
                .iter()
                .map(|&name| (name, self[name].endpoint()))
                .collect::<Vec<_>>(),
        )
    }
}

impl std::ops::Index<&str> for Sites {
    type Output = Site;

    fn index(&self, name: &str) -> &Site {
        &self.0[name]
    }
}

/// A picker that leaves the rotation to the balancer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation;

impl<Req: ?Sized> Picker<Req> for Rotation {
    fn pick(&self, _request: &Req, _cx: &PickContext<'_>) -> PickResult {
        PickResult::Any
    }
}

/// Sends a call and drops it; returns to which endpoint it was sent.
pub(crate) fn picked<S, Req>(balance: &S, request: Req) -> Option<Arc<str>>
where
    S: Service<Req> + Clone,
{
    let attempts = Attempts::new();
    let mut balance = balance.clone();
    let sent = attempts
        .scope(async { drop(balance.call(request)) })
        .now_or_never();
    assert!(sent.is_some());
    attempts.names().into_iter().next()
}

/// Lets spawned drivers apply everything that is ready.
pub(crate) async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}
