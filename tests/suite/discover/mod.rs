//! How the set follows discovery.

mod discovery;
