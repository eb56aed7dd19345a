//! The data types of weights and gradients: fp32 and bf16.

use crate::kernels::{Bf16, Element};
use crate::scatter::scatter;

/// A number that is converted to fp32 to compute with.
pub trait Number: Copy + Send + Sync {
    fn wide(self) -> f32;
    /// Rounds to the nearest; for bf16, to one of the two neighbors, chosen by key and index.
    fn narrow(wide: f32, key: u32, index: u32) -> Self;
    fn nearest(wide: f32) -> Self;
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

    #[inline(always)]
    fn nearest(wide: f32) -> f32 {
        wide
    }
}

/// The bits of a bfloat16.
impl Number for u16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    /// Stochastic rounding: up with a probability equal to the part that is cut off, so that updates much smaller than
    /// a weight's last bit are not lost but applied occasionally.
    #[inline(always)]
    fn narrow(wide: f32, key: u32, index: u32) -> u16 {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(scatter(index.wrapping_add(key)) & 0xffff) >> 16;
        // An infinity must not become a NaN by the carry, nor a NaN lose all its bits.
        let finite = bits & 0x7f80_0000 != 0x7f80_0000;
        let kept = bits >> 16 | u32::from(wide.is_nan()) << 6;
        (if finite { rounded } else { kept }) as u16
    }

    #[inline(always)]
    fn nearest(wide: f32) -> u16 {
        Bf16::narrow(wide).0
    }
}
