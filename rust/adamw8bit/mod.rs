//! One step of AdamW over one tensor, with both moments in 8 bits; docs/design/adamw8bit.md.
//!
//! A block is 256 elements. The state is one byte per moment and element, and per block the largest magnitude of the
//! first moment and of the root of the second. A step decodes a block, updates the weights from the moments in fp32,
//! and encodes the moments again; scratch memory is one block per thread.
//!
//! Every element is computed from its own block by operations that round one at a time, so neither the threads nor
//! the vector width can change a bit of the result.

mod map;
mod muon;
mod number;

pub use muon::{momentum, subtract};
pub use number::Number;

use crate::kernels::run_on_threads;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{Widest, allowed};
use map::{decode, encode};
use std::sync::Mutex;

/// Elements that share a scale.
pub const BLOCK: usize = 256;
/// Elements that a thread processes at a time.
const TILE: usize = 32 * BLOCK;
/// The fewest elements that are worth a second thread.
const TEAM_WORTH: usize = 2 * TILE;

/// The scalars of a step, computed once, in fp64, by the caller.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Factors of the first moment and of the gradient: beta1, and 1 - beta1 times the gradient's scale.
    pub first_decay: f32,
    pub first_gain: f32,
    /// The same for the second moment's root: the roots of beta2 and 1 - beta2.
    pub root_decay: f32,
    pub root_gain: f32,
    /// The learning rate and epsilon, with bias correction.
    pub rate: f32,
    pub eps: f32,
    /// The factor of the weights: 1 - learning rate * weight decay.
    pub keep: f32,
    /// Hashed with an element's index, it decides the rounding of 16-bit weights.
    pub rounding_key: u32,
    /// The index of the first element.
    pub first_index: u64,
}

/// The moments of a tensor: one code per element, one scale per block.
pub struct Moments<'a> {
    /// Sign and seven bits of the first moment.
    pub first: &'a mut [u8],
    pub first_scales: &'a mut [f32],
    /// Eight bits of the second moment's root.
    pub root: &'a mut [u8],
    pub root_scales: &'a mut [f32],
}

/// Updates `weights` and `moments` with `gradients`, on up to `threads` threads including this one.
///
/// # Panics
/// If the lengths of the slices do not match.
pub fn step<W: Number, G: Number>(
    weights: &mut [W],
    gradients: &[G],
    moments: Moments<'_>,
    step: &Step,
    threads: usize,
) {
    let count = weights.len();
    let blocks = count.div_ceil(BLOCK);
    assert!(gradients.len() == count && moments.first.len() == count && moments.root.len() == count);
    assert!(moments.first_scales.len() == blocks && moments.root_scales.len() == blocks);
    let run = widest::<W, G>();
    let tiles = weights
        .chunks_mut(TILE)
        .zip(gradients.chunks(TILE))
        .zip(moments.first.chunks_mut(TILE).zip(moments.first_scales.chunks_mut(TILE / BLOCK)))
        .zip(moments.root.chunks_mut(TILE).zip(moments.root_scales.chunks_mut(TILE / BLOCK)))
        .enumerate();
    let tiles = Mutex::new(tiles);
    let work = || {
        loop {
            // A statement of its own, so that the lock is released before the work.
            let next = tiles.lock().unwrap().next();
            let Some((number, (((weights, gradients), (first, first_scales)), (root, root_scales)))) = next
            else {
                break;
            };
            let step = Step { first_index: step.first_index + (number * TILE) as u64, ..*step };
            let moments = Moments { first, first_scales, root, root_scales };
            // SAFETY: `widest` chose it for this CPU.
            unsafe { run(weights, gradients, moments, &step) };
        }
    };
    if threads <= 1 || count < TEAM_WORTH {
        return work();
    }
    run_on_threads(&work, count.div_ceil(TILE), threads);
}

type Run<W, G> = unsafe fn(&mut [W], &[G], Moments<'_>, &Step);

/// The loop compiled for the widest vectors of this CPU.
fn widest<W: Number, G: Number>() -> Run<W, G> {
    #[cfg(target_arch = "x86_64")]
    {
        if allowed(Widest::Avx512)
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return tile_avx512::<W, G>;
        }
        if allowed(Widest::Avx2) && is_x86_feature_detected!("avx2") {
            return tile_avx2::<W, G>;
        }
    }
    tile::<W, G>
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn tile_avx512<W: Number, G: Number>(weights: &mut [W], gradients: &[G], moments: Moments<'_>, step: &Step) {
    tile(weights, gradients, moments, step);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn tile_avx2<W: Number, G: Number>(weights: &mut [W], gradients: &[G], moments: Moments<'_>, step: &Step) {
    tile(weights, gradients, moments, step);
}

#[inline(always)]
fn tile<W: Number, G: Number>(weights: &mut [W], gradients: &[G], moments: Moments<'_>, step: &Step) {
    let blocks = weights
        .chunks_mut(BLOCK)
        .zip(gradients.chunks(BLOCK))
        .zip(moments.first.chunks_mut(BLOCK).zip(moments.first_scales))
        .zip(moments.root.chunks_mut(BLOCK).zip(moments.root_scales))
        .enumerate();
    let mut scratch = [[0f32; BLOCK]; 2];
    for (number, (((weights, gradients), (first, first_scale)), (root, root_scale))) in blocks {
        // Indices have 32 bits: rounding repeats after four billion elements.
        let index = step.first_index as u32;
        let index = index.wrapping_add((number * BLOCK) as u32);
        let (first, root) = ((first, first_scale), (root, root_scale));
        if weights.len() == BLOCK {
            // Compiled separately for the constant length: saves 5% of the time.
            block(&mut weights[..BLOCK], gradients, first, root, &mut scratch, step, index);
        } else {
            block(weights, gradients, first, root, &mut scratch, step, index);
        }
    }
}

#[inline(always)]
fn block<W: Number, G: Number>(
    weights: &mut [W],
    gradients: &[G],
    (first_codes, first_scale): (&mut [u8], &mut f32),
    (root_codes, root_scale): (&mut [u8], &mut f32),
    [firsts, roots]: &mut [[f32; BLOCK]; 2],
    step: &Step,
    index: u32,
) {
    let count = weights.len();
    let (gradients, first_codes, root_codes) =
        (&gradients[..count], &mut first_codes[..count], &mut root_codes[..count]);
    let (firsts, roots) = (&mut firsts[..count], &mut roots[..count]);
    let (first_decayed, root_decayed) = (step.first_decay * *first_scale, step.root_decay * *root_scale);
    // The bits of magnitudes have the same order as the magnitudes, with infinities and NaNs above all others: if there
    // is one in the block, it is the maximum.
    let (mut first_most, mut root_most) = (0u32, 0u32);
    for i in 0..count {
        let gradient = gradients[i].wide();
        let first = signed(first_codes[i]) * first_decayed + step.first_gain * gradient;
        let root = decode::<8>(u32::from(root_codes[i])) * root_decayed;
        let added = step.root_gain * gradient;
        let root = (root * root + added * added).sqrt();
        let weight = step.keep * weights[i].wide() - step.rate * first / (root + step.eps);
        weights[i] = W::narrow(weight, step.rounding_key, index.wrapping_add(i as u32));
        first_most = first_most.max(first.to_bits() & 0x7fff_ffff);
        root_most = root_most.max(root.to_bits() & 0x7fff_ffff);
        firsts[i] = first;
        roots[i] = root;
    }
    *first_scale = scale(first_most);
    *root_scale = scale(root_most);
    if *first_scale > 0.0 {
        let inverse = 1.0 / *first_scale;
        for (code, first) in first_codes.iter_mut().zip(firsts.iter()) {
            let sign = first.to_bits() >> 24 & 0x80;
            *code = (encode::<7>(first.abs() * inverse) | sign) as u8;
        }
    } else {
        first_codes.fill(0);
    }
    if *root_scale > 0.0 {
        let inverse = 1.0 / *root_scale;
        for (code, root) in root_codes.iter_mut().zip(roots.iter()) {
            *code = encode::<8>(root * inverse) as u8;
        }
    } else {
        root_codes.fill(0);
    }
}

/// Decodes the first moment: a sign and seven bits, of which 0 means exactly 0, or every weight would always move. The
/// second moment's root deliberately has no 0: with a first moment other than 0, the step would be unbounded.
#[inline(always)]
fn signed(code: u8) -> f32 {
    let code = u32::from(code);
    let magnitude = if code & 0x7f == 0 { 0.0 } else { decode::<7>(code & 0x7f) };
    f32::from_bits(magnitude.to_bits() | (code & 0x80) << 24)
}

/// The scale of a block, from the bits of its largest magnitude.
///
/// A block of zeros (subnormal numbers count as 0) has scale 0. A block with an infinity or a NaN has scale NaN: all of
/// it is NaN from the next step on.
#[inline(always)]
fn scale(most: u32) -> f32 {
    match f32::from_bits(most) {
        most if most < f32::MIN_POSITIVE => 0.0,
        most if most <= f32::MAX => most,
        _ => f32::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step {
        first_decay: 0.9,
        first_gain: 0.1,
        root_decay: 0.975,
        root_gain: 0.2236,
        rate: 1e-2,
        eps: 1e-8,
        keep: 0.999,
        rounding_key: 12345,
        first_index: u32::MAX as u64 - 1000, // so that the index overflows
    };

    /// Weights, codes and scales as bits.
    type Outcome = (Vec<u32>, Vec<u8>, Vec<u8>, Vec<u32>);

    /// Five steps over an uneven number of elements whose magnitudes differ by many powers of ten.
    fn outcome<W: Number>(run: impl Fn(&mut [W], &[f32], Moments<'_>, &Step)) -> Outcome {
        let count = 5 * TEAM_WORTH + 77;
        let gradient = |n: usize| {
            let bits = crate::scatter::scatter(n as u32);
            (bits as i32 as f32) * f32::from_bits((60 + bits % 50) << 23)
        };
        let mut weights: Vec<W> = (0..count).map(|n| W::narrow(gradient(n) / 1e9, 0, 0)).collect();
        let (mut first, mut root) = (vec![0; count], vec![0; count]);
        let mut first_scales = vec![0f32; count.div_ceil(BLOCK)];
        let mut root_scales = first_scales.clone();
        for number in 1..=5 {
            let mut gradients: Vec<f32> = (0..count).map(|n| gradient(number * count + n)).collect();
            gradients[BLOCK * 3..BLOCK * 5].fill(0.0);
            gradients[BLOCK * 7] = f32::NAN;
            gradients[BLOCK * 9] = f32::INFINITY;
            let (first_scales, root_scales) = (&mut first_scales[..], &mut root_scales[..]);
            run(
                &mut weights,
                &gradients,
                Moments { first: &mut first, first_scales, root: &mut root, root_scales },
                &STEP,
            );
        }
        // A NaN's sign and payload depend on the CPU.
        let bits = |number: f32| if number.is_nan() { u32::MAX } else { number.to_bits() };
        let scales = first_scales.iter().chain(&root_scales).map(|&scale| bits(scale)).collect();
        (weights.iter().map(|weight| bits(weight.wide())).collect(), first, root, scales)
    }

    fn does_not_depend<W: Number>() {
        let plain = outcome::<W>(|weights, gradients, moments, step| tile(weights, gradients, moments, step));
        assert!(plain.1.iter().any(|&code| code > 0x80) && plain.2.iter().any(|&code| code < 8));
        for threads in [1, 2, 5] {
            assert!(plain == outcome::<W>(|w, g, moments, given| step(w, g, moments, given, threads)));
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has it.
            assert!(plain == outcome::<W>(|w, g, moments, step| unsafe { tile_avx2(w, g, moments, step) }));
        }
    }

    #[test]
    fn neither_threads_nor_vectors_change_a_bit() {
        does_not_depend::<f32>();
        does_not_depend::<u16>();
    }

    #[test]
    fn a_block_of_zeros_stays_zero_and_nothing_else_changes() {
        let (mut weights, gradients) = ([1f32; 300], [0f32; 300]);
        let (mut first, mut root, mut first_scales, mut root_scales) =
            ([0; 300], [0; 300], [0.0; 2], [0.0; 2]);
        let moments = Moments {
            first: &mut first,
            first_scales: &mut first_scales,
            root: &mut root,
            root_scales: &mut root_scales,
        };
        step(&mut weights, &gradients, moments, &STEP, 1);
        assert_eq!(weights, [0.999; 300]);
        assert_eq!((first, root, first_scales, root_scales), ([0; 300], [0; 300], [0.0; 2], [0.0; 2]));
    }
}
