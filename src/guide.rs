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

#[doc = include_str!("../docs/guide/start.md")]
pub mod start {}

#[doc = include_str!("../docs/guide/policies.md")]
pub mod policies {}

#[doc = include_str!("../docs/guide/layers.md")]
pub mod layers {}

#[doc = include_str!("../docs/guide/affinity.md")]
pub mod affinity {}

#[doc = include_str!("../docs/guide/health.md")]
pub mod health {}

#[doc = include_str!("../docs/guide/your_own.md")]
pub mod your_own {}

#[doc = include_str!("../docs/guide/troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("../docs/guide/coming_from.md")]
pub mod coming_from {}
