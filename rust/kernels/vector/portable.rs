//! For other CPUs, and the simple reference of the other vector types.
//!
//! On x86-64 that is CPUs without AVX2, where sixteen lanes are many instructions, and a fused multiply-add is a call of
//! the C library. There the largest operations are functions, or a third of all code of the products would be copies of
//! them.

// The same lane of several arrays is used.
#![allow(clippy::needless_range_loop)]

use super::{LANES, Vector};
use crate::kernels::element::{Bf16, Element};
use std::ops::{Add, Div, Mul, Sub};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Portable([f32; LANES]);

macro_rules! lanewise {
    ($($trait:ident $method:ident $sign:tt),*) => {$(
        impl $trait for Portable {
            type Output = Portable;

            #[inline(always)]
            fn $method(mut self, other: Portable) -> Portable {
                for lane in 0..LANES {
                    self.0[lane] $sign other.0[lane];
                }
                self
            }
        }
    )*};
}

lanewise!(Add add +=, Sub sub -=, Mul mul *=, Div div /=);

impl Vector for Portable {
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Portable {
        Portable([value; LANES])
    }

    #[inline(always)]
    fn load_f32(from: &[f32; LANES]) -> Portable {
        Portable(*from)
    }

    #[inline(always)]
    fn store_f32(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Portable {
        let mut wide = [0.0; LANES];
        for lane in 0..LANES {
            wide[lane] = Bf16(from[lane]).widen();
        }
        Portable(wide)
    }

    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn store_bf16(self, to: &mut [u16; LANES]) {
        for lane in 0..LANES {
            to[lane] = Bf16::narrow(self.0[lane]).0;
        }
    }

    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn mul_add(mut self, by: Portable, plus: Portable) -> Portable {
        for lane in 0..LANES {
            self.0[lane] = self.0[lane].mul_add(by.0[lane], plus.0[lane]);
        }
        self
    }

    #[inline(always)]
    fn greater(mut self, other: Portable) -> Portable {
        for lane in 0..LANES {
            self.0[lane] = if self.0[lane] > other.0[lane] { self.0[lane] } else { other.0[lane] };
        }
        self
    }

    #[inline(always)]
    fn choose_at_most(left: Portable, right: Portable, mut yes: Portable, no: Portable) -> Portable {
        for lane in 0..LANES {
            yes.0[lane] = if left.0[lane] <= right.0[lane] { yes.0[lane] } else { no.0[lane] };
        }
        yes
    }

    #[inline(always)]
    fn add_to_exponent(mut self, shifted: Portable) -> Portable {
        for lane in 0..LANES {
            let bits = self.0[lane].to_bits().wrapping_add(shifted.0[lane].to_bits() << 23);
            self.0[lane] = f32::from_bits(bits);
        }
        self
    }

    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn transposed(rows: [Portable; LANES]) -> [Portable; LANES] {
        let mut columns = rows;
        for row in 0..LANES {
            for lane in 0..LANES {
                columns[lane].0[row] = rows[row].0[lane];
            }
        }
        columns
    }
}
