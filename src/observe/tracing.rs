//! Events as log records of `tracing`.

use tracing::{debug, field::display, info, warn};

use crate::event::Event;

/// The target of the log records.
const TARGET: &str = "counterpoise";

/// Writes an event to the log.
///
/// The level is `debug` for trials and weights, `warn` for ejections, failures of discovery and
/// sets without an eligible endpoint, and `info` for the rest.
pub(crate) fn trace(event: &Event) {
    match event {
        Event::Joined {
            endpoint,
            weight,
            tier,
            zone,
            labels,
        } => {
            // Only fields with a value are written.
            let tier = if *tier > 0 { Some(*tier) } else { None };
            let labels = if labels.is_empty() {
                None
            } else {
                Some(display(labels))
            };
            info!(target: TARGET, %endpoint, weight, tier, zone = zone.as_deref(), labels, "endpoint joined");
        }
        Event::Ejected {
            endpoint,
            returns_in,
            cause,
        } => {
            warn!(target: TARGET, %endpoint, ?returns_in, ?cause, "endpoint ejected");
        }
        Event::OnTrial { endpoint } => debug!(target: TARGET, %endpoint, "endpoint on trial"),
        Event::Recovered { endpoint } => info!(target: TARGET, %endpoint, "endpoint recovered"),
        Event::WeightChanged {
            endpoint,
            weight,
            effective_weight,
            cause,
        } => {
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
