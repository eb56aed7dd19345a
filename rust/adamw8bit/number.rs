//! Weights and gradients as they lie in memory: 32 bits, or the upper 16 of them.

/// A number that is computed with in 32 bits.
pub trait Number: Copy + Send + Sync {
    fn wide(self) -> f32;
    /// The number nearest to it, or where the format is coarse one of its two neighbours, drawn by key and index.
    fn narrow(wide: f32, key: u32, index: u32) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(wide: f32, _: u32, _: u32) -> f32 {
        wide
    }
}

/// The bits of a bfloat16.
impl Number for u16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    /// Stochastic rounding: up with the probability of the part that is cut off, so that updates much smaller than a
    /// weight's last bit are not lost but made now and then.
    #[inline(always)]
    fn narrow(wide: f32, key: u32, index: u32) -> u16 {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(scatter(index.wrapping_add(key)) & 0xffff) >> 16;
        // An infinity must not be carried into a NaN, nor a NaN lose all its bits.
        let finite = bits & 0x7f80_0000 != 0x7f80_0000;
        let kept = bits >> 16 | u32::from(wide.is_nan()) << 6;
        (if finite { rounded } else { kept }) as u16
    }
}

/// Thirty-two bits that look random, from a counter: no state to keep, and any element's at any time.
#[inline(always)]
pub fn scatter(counter: u32) -> u32 {
    let mut bits = counter.wrapping_mul(0x9e37_79b1);
    bits = (bits ^ bits >> 16).wrapping_mul(0x7feb_352d);
    bits = (bits ^ bits >> 15).wrapping_mul(0x846c_a68b);
    bits ^ bits >> 16
}
