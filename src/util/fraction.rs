//! Fractions of one as whole numbers, so that they add up and compare exactly; common divisors.

/// The fraction that is one whole.
pub(crate) const FULL: u32 = 1 << 16;

/// Returns the greatest common divisor.
pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    // In a fold over many weights the divisor mostly becomes one early, and stays one.
    if a == 1 {
        return 1;
    }
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
