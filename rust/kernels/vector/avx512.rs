//! AVX-512: one register of sixteen.

use super::{LANES, Vector};
use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

#[derive(Clone, Copy)]
pub struct Avx512(pub(crate) __m512);

macro_rules! lanewise {
    ($($trait:ident $method:ident $intrinsic:ident),*) => {$(
        impl $trait for Avx512 {
            type Output = Avx512;

            #[inline(always)]
            fn $method(self, other: Avx512) -> Avx512 {
                // SAFETY: `Vector` is only used if the CPU has it.
                unsafe { Avx512($intrinsic(self.0, other.0)) }
            }
        }
    )*};
}

lanewise!(Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);

// SAFETY (each `unsafe` below): `Vector` is only used if the CPU has it; arrays have the loaded size.
impl Vector for Avx512 {
    const ROWS: usize = 16;

    #[inline(always)]
    fn splat(value: f32) -> Avx512 {
        unsafe { Avx512(_mm512_set1_ps(value)) }
    }

    #[inline(always)]
    fn load_f32(from: &[f32; LANES]) -> Avx512 {
        unsafe { Avx512(_mm512_loadu_ps(from.as_ptr())) }
    }

    #[inline(always)]
    fn store_f32(self, to: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Avx512 {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [u16; LANES]) {
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
            let upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), upper);
        }
    }

    #[inline(always)]
    fn mul_add(self, by: Avx512, plus: Avx512) -> Avx512 {
        unsafe { Avx512(_mm512_fmadd_ps(self.0, by.0, plus.0)) }
    }

    #[inline(always)]
    fn greater(self, other: Avx512) -> Avx512 {
        unsafe { Avx512(_mm512_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    fn choose_at_most(left: Avx512, right: Avx512, yes: Avx512, no: Avx512) -> Avx512 {
        unsafe {
            let mask = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(left.0, right.0);
            Avx512(_mm512_mask_blend_ps(mask, no.0, yes.0))
        }
    }

    #[inline(always)]
    fn add_to_exponent(self, shifted: Avx512) -> Avx512 {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0));
            Avx512(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), exponent)))
        }
    }
    #[inline(always)]
    fn transposed(rows: [Avx512; LANES]) -> [Avx512; LANES] {
        let mut columns = rows;
        unsafe {
            // Within quarters of registers: in quarter q of `fours[4 * i + j]` are rows 4 * i.. of column 4 * q + j.
            let mut fours = [_mm512_setzero_pd(); LANES];
            let mut first = 0;
            while first < LANES {
                let (a, b, c, d) = (rows[first].0, rows[first + 1].0, rows[first + 2].0, rows[first + 3].0);
                let low =
                    (_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpacklo_ps(c, d)));
                let high =
                    (_mm512_castps_pd(_mm512_unpackhi_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(c, d)));
                fours[first] = _mm512_unpacklo_pd(low.0, low.1);
                fours[first + 1] = _mm512_unpackhi_pd(low.0, low.1);
                fours[first + 2] = _mm512_unpacklo_pd(high.0, high.1);
                fours[first + 3] = _mm512_unpackhi_pd(high.0, high.1);
                first += 4;
            }
            let mut j = 0;
            while j < 4 {
                let (a, b) = (_mm512_castpd_ps(fours[j]), _mm512_castpd_ps(fours[4 + j]));
                let (c, d) = (_mm512_castpd_ps(fours[8 + j]), _mm512_castpd_ps(fours[12 + j]));
                let (even_above, odd_above) =
                    (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                let (even_below, odd_below) =
                    (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                columns[j].0 = _mm512_shuffle_f32x4::<0x88>(even_above, even_below);
                columns[4 + j].0 = _mm512_shuffle_f32x4::<0x88>(odd_above, odd_below);
                columns[8 + j].0 = _mm512_shuffle_f32x4::<0xdd>(even_above, even_below);
                columns[12 + j].0 = _mm512_shuffle_f32x4::<0xdd>(odd_above, odd_below);
                j += 1;
            }
        }
        columns
    }
}
