//! Calls that end at the head, at the first data or at the end of their body.

mod classifiers;
mod ends;
mod health;
mod latency;
mod scripts;
