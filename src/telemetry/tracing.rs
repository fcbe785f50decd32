//! Events of `tracing`.

use tracing::{debug, info, warn};

use crate::events::Event;

/// Writes an event to the log of whoever subscribes: `debug` for trials and weights, `warn`
/// for what concerns the whole set, `info` for the rest.
pub(crate) fn trace(event: &Event) {
    match event {
        Event::Joined { endpoint, weight } => info!(%endpoint, weight, "endpoint joined"),
        Event::Ejected { endpoint, returns_in, cause } => {
            info!(%endpoint, ?returns_in, ?cause, "endpoint ejected");
        }
        Event::OnTrial { endpoint } => debug!(%endpoint, "endpoint on trial"),
        Event::Recovered { endpoint } => info!(%endpoint, "endpoint recovered"),
        Event::WeightChanged { endpoint, weight, effective_weight, cause } => {
            debug!(%endpoint, weight, effective_weight, ?cause, "endpoint's weight changed");
        }
        Event::Left { endpoint } => info!(%endpoint, "endpoint left"),
        Event::DiscoveryFailed { error } => warn!(error = %error, "discovery failed"),
        Event::NothingEligible { counts } => warn!(%counts, "no endpoint in service"),
    }
}
