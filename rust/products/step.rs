//! A step along the inner dimension: how packed numbers are multiplied and added to sums, with each set of
//! instructions.
//!
//! The numbers of a step are one `f32`, or two bf16 (`Pairs`), in each lane.

#[cfg(target_arch = "x86_64")]
use crate::kernels::{Avx2, Avx512, Bf16};
use crate::kernels::{Element, LANES, Portable, Vector, load};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// All methods are `#[inline(always)]`, but for `FlushedPortable`'s, and may only be called if the CPU has the
/// instructions.
pub trait Step {
    type V: Vector;

    /// Numbers along the inner dimension in a lane.
    const NUMBERS: usize = 1;
    /// As many sums as fit into the registers: rows, and vectors of columns.
    const ROWS: usize;
    const VECTORS: usize;

    /// Sixteen steps of a lane, from the start of `row`. What is beyond the row's end does not matter, but for the second of two
    /// numbers in the last lane: that is `beyond`.
    #[inline(always)]
    fn load_along<T: Element>(row: &[T], _beyond: u16) -> Self::V {
        load(row, 0)
    }

    /// A step of sixteen lanes, from the starts of `rows`, of which there are `NUMBERS`, or one less: then `beyond` is
    /// the second.
    #[inline(always)]
    fn load_across<T: Element>(first: &[T], _second: Option<&[T]>, _beyond: u16) -> Self::V {
        load(first, 0)
    }

    /// `sum + a * b`
    fn step(a: Self::V, b: Self::V, sum: Self::V) -> Self::V;

    /// Around a loop of steps.
    #[inline(always)]
    fn begin() -> u32 {
        0
    }

    #[inline(always)]
    fn end(_begun: u32) {}
}

/// For `f32`.
pub struct Fused<V>(V);

macro_rules! fused {
    ($($type:ty, $rows:literal, $vectors:literal);*) => {$(
        impl Step for Fused<$type> {
            type V = $type;
            const ROWS: usize = $rows;
            const VECTORS: usize = $vectors;

            #[inline(always)]
            fn step(a: $type, b: $type, sum: $type) -> $type {
                a.mul_add(b, sum)
            }
        }
    )*};
}

fused!(Portable, 4, 1);
#[cfg(target_arch = "x86_64")]
fused!(Avx512, 12, 2; Avx2, 6, 1);

/// For bf16 without instructions for it: `f32`, where denormals become 0 as `Pairs` makes them.
#[cfg(target_arch = "x86_64")]
pub struct Flushed<V>(V);

#[cfg(target_arch = "x86_64")]
impl<V: Vector> Step for Flushed<V>
where
    Fused<V>: Step<V = V>,
{
    type V = V;
    const ROWS: usize = Fused::<V>::ROWS;
    const VECTORS: usize = Fused::<V>::VECTORS;

    #[inline(always)]
    fn load_along<T: Element>(row: &[T], _beyond: u16) -> V {
        load_rounded(row)
    }

    #[inline(always)]
    fn load_across<T: Element>(first: &[T], _second: Option<&[T]>, _beyond: u16) -> V {
        load_rounded(first)
    }

    #[inline(always)]
    fn step(a: V, b: V, sum: V) -> V {
        Fused::<V>::step(a, b, sum)
    }

    /// Operands and results that are denormal become 0, by the CPU's control register. The steps between `begin` and
    /// `end` read memory and write it, so the compiler keeps them there.
    #[inline(always)]
    fn begin() -> u32 {
        const FLUSH: u32 = 0x8040;
        let mut before = 0u32;
        // SAFETY: only the treatment of denormals changes, until `end`.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack, preserves_flags));
            let changed = before | FLUSH;
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const changed, options(nostack, preserves_flags));
        }
        before
    }

    #[inline(always)]
    fn end(begun: u32) {
        // SAFETY: as it was before `begin`.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const begun, options(nostack, preserves_flags));
        }
    }
}

/// For bf16 with AVX512_BF16. The instruction adds the product of the upper halves first, then that of the lower ones,
/// each by a fused multiply-add whose denormal operands and results are 0 whatever the control register says. So the
/// number that comes first along the inner dimension has to be in the upper half.
#[cfg(target_arch = "x86_64")]
pub struct Pairs;

#[cfg(target_arch = "x86_64")]
impl Step for Pairs {
    type V = Avx512;
    const NUMBERS: usize = 2;
    const ROWS: usize = 12;
    const VECTORS: usize = 2;

    #[inline(always)]
    fn load_along<T: Element>(row: &[T], beyond: u16) -> Avx512 {
        // SAFETY: the CPU has it, and there are as many numbers.
        unsafe {
            if row.len() < 2 * LANES {
                let row = padded::<T, { 2 * LANES }>(row, beyond);
                return Avx512(_mm512_castsi512_ps(pairs(&row)));
            }
            Avx512(_mm512_castsi512_ps(pairs(row)))
        }
    }

    #[inline(always)]
    fn load_across<T: Element>(first: &[T], second: Option<&[T]>, beyond: u16) -> Avx512 {
        // SAFETY: the CPU has it.
        unsafe {
            let lower = match second {
                Some(second) => lower_halves(second),
                None => _mm512_set1_epi32(i32::from(beyond)),
            };
            Avx512(_mm512_castsi512_ps(_mm512_or_si512(upper_halves(first), lower)))
        }
    }

    #[inline(always)]
    fn step(a: Avx512, b: Avx512, sum: Avx512) -> Avx512 {
        // SAFETY: the CPU has it; the types have the same bits.
        unsafe {
            let (a, b) =
                (std::mem::transmute::<__m512, __m512bh>(a.0), std::mem::transmute::<__m512, __m512bh>(b.0));
            Avx512(_mm512_dpbf16_ps(sum.0, a, b))
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn is_bf16<T: Element>() -> bool {
    size_of::<T>() == size_of::<u16>()
}

/// 32 numbers as bf16, each first one of two in the upper half.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pairs<T: Element>(row: &[T]) -> __m512i {
    assert!(row.len() >= 2 * LANES);
    // SAFETY: there are as many numbers, and elements are bf16 or `f32`.
    unsafe {
        if is_bf16::<T>() {
            return _mm512_rol_epi32::<16>(_mm512_loadu_si512(row.as_ptr().cast()));
        }
        let (left, right) = (rounded(row.as_ptr().cast()), rounded(row.as_ptr().add(LANES).cast()));
        _mm512_permutex2var_epi16(left, _mm512_loadu_si512(UPPER_OF_PAIRS.as_ptr().cast()), right)
    }
}

/// Numbers 1, 0, 3, 2, ... of 32 `f32`: where their upper halves are.
#[cfg(target_arch = "x86_64")]
const UPPER_OF_PAIRS: [u16; 2 * LANES] = {
    let mut halves = [0; 2 * LANES];
    let mut at = 0;
    while at < halves.len() {
        halves[at] = 2 * (at as u16 ^ 1) + 1;
        at += 1;
    }
    halves
};

/// Sixteen `f32`; their upper halves are bf16, rounded as `Bf16::narrow`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rounded(numbers: *const f32) -> __m512i {
    // SAFETY: by the caller's word.
    unsafe {
        let numbers = _mm512_loadu_ps(numbers);
        let bits = _mm512_castps_si512(numbers);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000))
    }
}

/// Sixteen numbers as bf16 in the upper halves.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn upper_halves<T: Element>(numbers: &[T]) -> __m512i {
    // SAFETY: as `lower_halves`.
    unsafe { _mm512_slli_epi32::<16>(lower_halves(numbers)) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn lower_halves<T: Element>(numbers: &[T]) -> __m512i {
    if numbers.len() < LANES {
        let numbers = padded::<T, LANES>(numbers, 0);
        // SAFETY: there are sixteen.
        return unsafe { sixteen(numbers.as_ptr()) };
    }
    // SAFETY: there are sixteen.
    unsafe { sixteen(numbers.as_ptr()) }
}

/// Sixteen numbers as bf16 in the lower halves.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sixteen<T: Element>(numbers: *const T) -> __m512i {
    // SAFETY: by the caller's word; elements are bf16 or `f32`.
    unsafe {
        if is_bf16::<T>() {
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(numbers.cast()))
        } else {
            _mm512_srli_epi32::<16>(rounded(numbers.cast()))
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[cold]
#[inline(never)]
fn padded<T: Element, const LENGTH: usize>(rest: &[T], beyond: u16) -> [T; LENGTH] {
    let mut padded = [T::narrow(Bf16(beyond).widen()); LENGTH];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

/// Sixteen numbers, rounded to bf16 if they are `f32`.
#[inline(always)]
fn load_rounded<V: Vector, T: Element>(row: &[T]) -> V {
    let numbers: V = load(row, 0);
    if size_of::<T>() < size_of::<f32>() {
        return numbers;
    }
    let mut rounded = [0; LANES];
    numbers.store_bf16(&mut rounded);
    V::load_bf16(&rounded)
}

/// What `Pairs` does, for any CPU.
pub struct FlushedPortable;

impl Step for FlushedPortable {
    type V = Portable;
    const ROWS: usize = 4;
    const VECTORS: usize = 1;

    #[inline(always)]
    fn load_along<T: Element>(row: &[T], _beyond: u16) -> Portable {
        load_rounded(row)
    }

    #[inline(always)]
    fn load_across<T: Element>(first: &[T], _second: Option<&[T]>, _beyond: u16) -> Portable {
        load_rounded(first)
    }

    #[cfg_attr(target_arch = "x86_64", inline(never))] // as in `Portable`
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn step(a: Portable, b: Portable, sum: Portable) -> Portable {
        let (mut left, mut right, mut sums) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        a.store_f32(&mut left);
        b.store_f32(&mut right);
        sum.store_f32(&mut sums);
        for lane in 0..LANES {
            sums[lane] = flushed_mul_add(left[lane], right[lane], sums[lane]);
        }
        Portable::load_f32(&sums)
    }
}

/// A fused multiply-add with denormals as zero, like the instructions: a result is denormal if it is below the least
/// normal number after rounding to 24 bits.
#[inline(always)]
pub fn flushed_mul_add(a: f32, b: f32, sum: f32) -> f32 {
    let (a, b, sum) = (flushed(a), flushed(b), flushed(sum));
    let result = a.mul_add(b, sum);
    if result.abs() == f32::MIN_POSITIVE { least_normal(a, b, sum, result) } else { flushed(result) }
}

#[inline(always)]
fn flushed(number: f32) -> f32 {
    // Compared as bits, which NaN passes too.
    let tiny = number.to_bits() << 1 < f32::MIN_POSITIVE.to_bits() << 1;
    if tiny { 0f32.copysign(number) } else { number }
}

/// The result was rounded to the multiples of the least denormal number, so it can be a bit too large. Both factors of
/// a sum so small cannot be large.
#[cold]
fn least_normal(a: f32, b: f32, sum: f32, result: f32) -> f32 {
    const SCALE: f32 = (1 << 24) as f32;
    let (small, large) = if a.abs() < b.abs() { (a, b) } else { (b, a) };
    let rounded = (small * SCALE).mul_add(large, sum * SCALE);
    if rounded.abs() < f32::MIN_POSITIVE * SCALE { 0f32.copysign(result) } else { result }
}
