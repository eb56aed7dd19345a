//! The data types of activations.

use super::vector::{LANES, Vector};

pub trait Element: Copy + Default + Send + Sync + 'static {
    fn widen(self) -> f32;
    fn narrow(value: f32) -> Self;
    fn load<V: Vector>(from: &[Self; LANES]) -> V;
    fn store<V: Vector>(vector: V, to: &mut [Self; LANES]);
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn load<V: Vector>(from: &[f32; LANES]) -> V {
        V::load_f32(from)
    }

    #[inline(always)]
    fn store<V: Vector>(vector: V, to: &mut [f32; LANES]) {
        vector.store_f32(to);
    }
}

/// bfloat16: the upper half of an `f32`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Element for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Rounds to nearest, ties to even. Rounding could carry a NaN's bits over to an infinity or into the sign, so a
    /// NaN is truncated and made quiet.
    #[inline(always)]
    fn narrow(value: f32) -> Bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        Bf16((if value.is_nan() { bits | 0x40_0000 } else { rounded } >> 16) as u16)
    }
    #[inline(always)]
    fn load<V: Vector>(from: &[Bf16; LANES]) -> V {
        // SAFETY: a `Bf16` has the layout of its bits.
        V::load_bf16(unsafe { &*std::ptr::from_ref(from).cast() })
    }

    #[inline(always)]
    fn store<V: Vector>(vector: V, to: &mut [Bf16; LANES]) {
        // SAFETY: as above.
        vector.store_bf16(unsafe { &mut *std::ptr::from_mut(to).cast() });
    }
}
