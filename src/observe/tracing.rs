//! Events of `tracing`.

use tracing::{debug, field::display, info, warn};

use crate::event::Event;

/// Where the events are from.
const TARGET: &str = "counterpoise";

/// Writes an event to the log of whoever subscribes: `debug` for trials and weights, `warn`
/// for ejections and what concerns the whole set, `info` for the rest.
pub(crate) fn trace(event: &Event) {
    match event {
        Event::Joined { endpoint, weight, tier, zone, labels } => {
            // What is not set is not written.
            let tier = if *tier > 0 { Some(*tier) } else { None };
            let labels = if labels.is_empty() { None } else { Some(display(labels)) };
            info!(target: TARGET, %endpoint, weight, tier, zone = zone.as_deref(), labels, "endpoint joined");
        }
        Event::Ejected { endpoint, returns_in, cause } => {
            warn!(target: TARGET, %endpoint, ?returns_in, ?cause, "endpoint ejected");
        }
        Event::OnTrial { endpoint } => debug!(target: TARGET, %endpoint, "endpoint on trial"),
        Event::Recovered { endpoint } => info!(target: TARGET, %endpoint, "endpoint recovered"),
        Event::WeightChanged { endpoint, weight, effective_weight, cause } => {
            debug!(target: TARGET, %endpoint, weight, effective_weight, ?cause, "endpoint's weight changed");
        }
        Event::Left { endpoint } => info!(target: TARGET, %endpoint, "endpoint left"),
        Event::DiscoveryFailed { error } => {
            warn!(target: TARGET, error = %error, "discovery failed");
        }
        Event::NothingEligible { counts } => {
            warn!(target: TARGET, %counts, "no endpoint in service");
        }
    }
}
