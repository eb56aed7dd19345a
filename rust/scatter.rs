//! Random bits without a generator: a hash of a counter.

/// 32 pseudo-random bits from a counter: there is no state, and elements can be computed in any order.
#[inline(always)]
pub fn scatter(counter: u32) -> u32 {
    let mut bits = counter.wrapping_mul(0x9e37_79b1);
    bits = (bits ^ bits >> 16).wrapping_mul(0x7feb_352d);
    bits = (bits ^ bits >> 15).wrapping_mul(0x846c_a68b);
    bits ^ bits >> 16
}
