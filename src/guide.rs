//! The guide, from the first call to a policy of your own. It contains documentation only.
//!
//! 1. [`start`]: reqwest, hyper and tonic in two minutes.
//! 2. [`policies`]: which policy, and what each costs.
//! 3. [`layers`]: timeouts, retries, hedging and limits around a balancer.
//! 4. [`affinity`]: how requests of one key stay with one endpoint.
//! 5. [`health`]: when endpoints are ejected, and how they recover.
//! 6. [`your_own`]: a policy, a target, a classifier, a source of endpoints.
//! 7. [`troubleshooting`]: an endpoint without calls, `Service<_>` that is not satisfied, errors.
//! 8. [`coming_from`]: tower's balancer, tonic, nginx, Envoy, pingora.

/// The targets of the links in the guide.
///
/// Each file defines them as well, for readers of the files. Of two definitions the first counts,
/// so these stand before the text.
macro_rules! links {
    () => {
        "[a-classifier]: crate::guide::your_own#a-classifier
[a-policy]: crate::guide::your_own#a-policy
[a-source]: crate::guide::your_own#a-source-of-endpoints
[health]: crate::guide::health
[layers]: crate::guide::layers#retry
[layers-timeout]: crate::guide::layers#timeout
[moving]: crate::guide::affinity#moving-from-a-proxy
[tls]: crate::http#tls
[owners]: crate::Balance::owners
[wait_for_endpoints]: crate::Builder::wait_for_endpoints
[wait_for_ready]: crate::Builder::wait_for_ready
"
    };
}

#[doc = links!()]
#[doc = include_str!("../docs/guide/start.md")]
pub mod start {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/policies.md")]
pub mod policies {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/layers.md")]
pub mod layers {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/affinity.md")]
pub mod affinity {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/health.md")]
pub mod health {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/your_own.md")]
pub mod your_own {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/troubleshooting.md")]
pub mod troubleshooting {}

#[doc = links!()]
#[doc = include_str!("../docs/guide/coming_from.md")]
pub mod coming_from {}
