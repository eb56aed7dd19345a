//! AVX2: two registers of eight.

use super::{LANES, Vector};
use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

macro_rules! lanewise {
    ($($trait:ident $method:ident $intrinsic:ident),*) => {$(
        impl $trait for Avx2 {
            type Output = Avx2;

            #[inline(always)]
            fn $method(self, other: Avx2) -> Avx2 {
                // SAFETY: `Vector` is only used if the CPU has it.
                unsafe { Avx2($intrinsic(self.0, other.0), $intrinsic(self.1, other.1)) }
            }
        }
    )*};
}

lanewise!(Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);

// SAFETY (each `unsafe` below): `Vector` is only used if the CPU has it; arrays have the loaded size.

#[inline(always)]
unsafe fn widen(bits: __m128i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) }
}

/// The bits of bf16, each in the lower half of its lane.
#[inline(always)]
unsafe fn narrow(wide: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(wide);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
    }
}

#[inline(always)]
unsafe fn choose(left: __m256, right: __m256, yes: __m256, no: __m256) -> __m256 {
    unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LE_OQ>(left, right)) }
}

#[inline(always)]
unsafe fn add_exponent(number: __m256, shifted: __m256) -> __m256 {
    unsafe {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(number), exponent))
    }
}

#[inline(always)]
unsafe fn transposed_eight(rows: [__m256; 8]) -> [__m256; 8] {
    let mut columns = rows;
    unsafe {
        // Within halves of registers: in half h of `fours[4 * i + j]` are rows 4 * i.. of column 4 * h + j.
        let mut fours = [_mm256_setzero_pd(); 8];
        let mut first = 0;
        while first < 8 {
            let (a, b, c, d) = (rows[first], rows[first + 1], rows[first + 2], rows[first + 3]);
            let low =
                (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d)));
            let high =
                (_mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)));
            fours[first] = _mm256_unpacklo_pd(low.0, low.1);
            fours[first + 1] = _mm256_unpackhi_pd(low.0, low.1);
            fours[first + 2] = _mm256_unpacklo_pd(high.0, high.1);
            fours[first + 3] = _mm256_unpackhi_pd(high.0, high.1);
            first += 4;
        }
        let mut j = 0;
        while j < 4 {
            let (above, below) = (_mm256_castpd_ps(fours[j]), _mm256_castpd_ps(fours[4 + j]));
            columns[j] = _mm256_permute2f128_ps::<0x20>(above, below);
            columns[4 + j] = _mm256_permute2f128_ps::<0x31>(above, below);
            j += 1;
        }
    }
    columns
}

impl Vector for Avx2 {
    const ROWS: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Avx2 {
        unsafe { Avx2(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    fn load_f32(from: &[f32; LANES]) -> Avx2 {
        unsafe { Avx2(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from[8..].as_ptr())) }
    }

    #[inline(always)]
    fn store_f32(self, to: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), self.1);
        }
    }

    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Avx2 {
        unsafe {
            let low = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_loadu_si128(from[8..].as_ptr().cast());
            Avx2(widen(low), widen(high))
        }
    }

    #[inline(always)]
    fn store_bf16(self, to: &mut [u16; LANES]) {
        unsafe {
            // Packing works within halves of a register; the permutation puts the quarters in order.
            let packed = _mm256_packus_epi32(narrow(self.0), narrow(self.1));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    fn mul_add(self, by: Avx2, plus: Avx2) -> Avx2 {
        unsafe { Avx2(_mm256_fmadd_ps(self.0, by.0, plus.0), _mm256_fmadd_ps(self.1, by.1, plus.1)) }
    }

    #[inline(always)]
    fn greater(self, other: Avx2) -> Avx2 {
        unsafe { Avx2(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn choose_at_most(left: Avx2, right: Avx2, yes: Avx2, no: Avx2) -> Avx2 {
        unsafe { Avx2(choose(left.0, right.0, yes.0, no.0), choose(left.1, right.1, yes.1, no.1)) }
    }

    #[inline(always)]
    fn add_to_exponent(self, shifted: Avx2) -> Avx2 {
        unsafe { Avx2(add_exponent(self.0, shifted.0), add_exponent(self.1, shifted.1)) }
    }
    #[inline(always)]
    fn transposed(rows: [Avx2; LANES]) -> [Avx2; LANES] {
        let mut columns = rows;
        unsafe {
            let mut half = 0;
            while half < 2 {
                let (mut left, mut right) = ([_mm256_setzero_ps(); 8], [_mm256_setzero_ps(); 8]);
                let mut row = 0;
                while row < 8 {
                    left[row] = rows[8 * half + row].0;
                    right[row] = rows[8 * half + row].1;
                    row += 1;
                }
                (left, right) = (transposed_eight(left), transposed_eight(right));
                let mut lane = 0;
                while lane < 8 {
                    if half == 0 {
                        columns[lane].0 = left[lane];
                        columns[8 + lane].0 = right[lane];
                    } else {
                        columns[lane].1 = left[lane];
                        columns[8 + lane].1 = right[lane];
                    }
                    lane += 1;
                }
                half += 1;
            }
        }
        columns
    }
}
