//! What is measured of calls, and the policies that compare it.

mod attacks;
mod choices;
mod costs;
mod fast_failures;
