//! Against the formulas in f64, and every vector type against the portable one. Whole kernels are tested from Python,
//! against torch.

use super::element::{Bf16, Element};
use super::exp::exp;
use super::panels::add_product;
use super::vector::{LANES, Portable, Vector};
use super::*;

/// The distance of two floats, in ulps of the expected one.
fn ulps(got: f32, expected: f64) -> f64 {
    let step =
        f64::from(f32::from_bits((expected.abs() as f32).to_bits() + 1)) - f64::from(expected.abs() as f32);
    (f64::from(got) - expected).abs() / step
}

fn exp_of(x: [f32; LANES]) -> [f32; LANES] {
    let mut result = [0.0; LANES];
    exp(Portable::load_f32(&x)).store_f32(&mut result);
    result
}

#[test]
fn exp_is_within_one_ulp_wherever_it_is_normal() {
    let mut worst: f64 = 0.0;
    for sign in [0, 1 << 31] {
        // Every 61st number up to 88.7.
        for bits in (0..88.722_f32.to_bits()).step_by(61 * LANES) {
            let x = std::array::from_fn(|lane| f32::from_bits((bits + 61 * lane as u32) | sign));
            for (x, got) in x.into_iter().zip(exp_of(x)) {
                if (-87.336_5..=88.722_8).contains(&x) {
                    worst = worst.max(ulps(got, f64::from(x).exp()));
                }
            }
        }
    }
    assert!(worst <= 1.0, "{worst}");
}

#[test]
fn exp_at_the_ends() {
    let one = |x: f32| exp_of([x; LANES])[7];
    assert_eq!(one(0.0), 1.0);
    assert_eq!(one(-0.0), 1.0);
    assert_eq!(one(f32::INFINITY), f32::INFINITY);
    assert_eq!(one(f32::NEG_INFINITY), 0.0);
    assert!(one(f32::NAN).is_nan() && one(-f32::NAN).is_nan());
    for x in [88.722_85, 89.0, 1e4, 1e30, f32::MAX] {
        assert_eq!(one(x), f32::INFINITY, "{x}");
    }
    for x in [-87.4, -88.0, -104.0, -1e4, -1e30, f32::MIN] {
        assert_eq!(one(x), 0.0, "{x}");
    }
    assert!(one(88.722_83).is_finite());
    assert!(one(-87.336_5) >= f32::MIN_POSITIVE);
}

#[test]
fn bf16_rounds_to_the_nearest_even_and_keeps_nan() {
    let narrow = |bits: u32| Bf16::narrow(f32::from_bits(bits)).0;
    assert_eq!(narrow(0x3f80_0000), 0x3f80);
    assert_eq!(narrow(0x3f80_8000), 0x3f80, "a tie goes down to even");
    assert_eq!(narrow(0x3f81_8000), 0x3f82, "a tie goes up to even");
    assert_eq!(narrow(0x3f80_8001), 0x3f81);
    assert_eq!(narrow(0x7f7f_ffff), 0x7f80, "above the greatest is infinite");
    assert_eq!(narrow(0xff80_0000), 0xff80);
    for nan in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffff_ffff] {
        assert!(Bf16(narrow(nan)).widen().is_nan(), "{nan:x}");
    }
    for bits in (0..=u16::MAX).map(Bf16).filter(|x| !x.widen().is_nan()) {
        assert_eq!(Bf16::narrow(bits.widen()), bits);
    }
}

#[test]
fn a_bad_label_or_position_changes_nothing() {
    let mut logits = vec![1.0f32; 8];
    let mut losses = vec![7.0; 2];
    for bad in [4, -1, i64::MAX, i64::MIN] {
        assert_eq!(cross_entropy(&mut logits, &[0, bad], 4, 1.0, &mut losses, 1), Err(BadLabel(bad)));
    }
    assert_eq!((logits, losses), (vec![1.0; 8], vec![7.0; 2]));

    let mut matrix = vec![1.0f32; 8];
    for bad in [3i64, -1, i64::MAX, i64::MIN] {
        let positions = [0, bad];
        let rotary = Rotary {
            cos: &[1.0; 6],
            sin: &[1.0; 6],
            half: 2,
            positions: &positions,
            heads: 1,
            inverse: false,
        };
        assert_eq!(rotate(&mut matrix, &rotary, 1), Err(BadPosition(bad)));
    }
    assert_eq!(matrix, vec![1.0; 8]);
}

#[test]
fn threads_change_no_bit() {
    // There is no OpenMP in this process, so the threads are our own.
    let (rows, width) = (301, 257);
    let x: Vec<f32> = (0..rows * width).map(|i| ((i * 2654435761) % 1000003) as f32 / 5e5 - 1.0).collect();
    let gain: Vec<f32> = (0..width).map(|i| i as f32 / 100.0).collect();
    let backward = |threads| {
        let (mut gain_grad, mut dx) = (vec![0.5; width], vec![0.0; x.len()]);
        norm_backward(&x, &x, &gain, 1e-5, &mut gain_grad, &mut dx, 100, threads);
        (gain_grad, dx)
    };
    let alone = backward(1);
    for threads in [2, 3, 8] {
        assert!(backward(threads) == alone);
        assert_eq!(squares(&x, threads), squares(&x, 1));
    }
}

#[test]
fn units_of_rows_one_by_one_change_no_bit() {
    let (rows, width, unit) = (330, 40, 100);
    let x: Vec<f32> = (0..rows * width).map(|i| ((i * 2654435761) % 1000003) as f32 / 5e5 - 1.0).collect();
    let gain = vec![1.5; width];
    let gain_grad = |at_once: usize| {
        let mut gain_grad = vec![0.5; width];
        for x in x.chunks(at_once * width) {
            norm_backward(x, x, &gain, 1e-5, &mut gain_grad, &mut vec![0.0; x.len()], unit, 2);
        }
        gain_grad
    };
    assert_eq!(gain_grad(100), gain_grad(rows));
    assert_eq!(gain_grad(200), gain_grad(rows));
    assert_ne!(gain_grad(50), gain_grad(rows), "half a unit is summed differently");
}

#[test]
fn the_gate_goes_back_in_place_too() {
    let numbers =
        |count: usize| -> Vec<f32> { (0..count).map(|n| (n * 37 % 101) as f32 / 17.0 - 3.0).collect() };
    let (mut gate_up, d_act, mut act) = (numbers(2 * 5 * 21), numbers(5 * 21), vec![0.0; 5 * 21]);
    let (mut gate_up_too, mut both) = (gate_up.clone(), d_act.clone());
    gate_backward(&mut gate_up, &d_act, 21, &mut act, 1);
    gate_backward_in_place(&mut gate_up_too, &mut both, 21, 2);
    assert!(gate_up == gate_up_too && act == both);
}

#[test]
fn squares_of_all_lengths() {
    for length in [0, 1, 15, 16, 17, 8191, 8192, 8193, 70_000] {
        let x: Vec<f32> = (0..length).map(|i| (i % 13) as f32 / 4.0 - 1.0).collect();
        let expected: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((squares(&x, 2) - expected).abs() <= 1e-5 * expected, "{length}");
        let narrow: Vec<Bf16> = x.iter().map(|x| Bf16::narrow(*x)).collect();
        assert_eq!(squares(&narrow, 2), squares(&x, 2), "these numbers are exact in either");
    }
    assert!(squares(&[f32::NAN, 1.0], 1).is_nan());
}

/// A panel of numbers between -1 and 1.
fn panel(lines: usize, seed: usize) -> Vec<Line> {
    let number = |i: usize| ((i + seed) * 2654435761 % 1000003) as f32 / 5e5 - 1.0;
    (0..lines).map(|line| Line(std::array::from_fn(|lane| number(line * LANES + lane)))).collect()
}

/// A tile of a product, added to other numbers.
#[inline(always)]
fn product<V: Vector>() -> Vec<Line> {
    let mut tile: [Line; LANES] = panel(LANES, 3).try_into().unwrap();
    add_product::<V>(&panel(77, 1), &panel(77, 2), &mut tile);
    tile.into()
}

#[test]
fn a_product_is_a_chain_of_fused_multiply_adds() {
    let (a, b, tile) = (panel(77, 1), panel(77, 2), product::<Portable>());
    for (row, before) in panel(LANES, 3).iter().enumerate() {
        for lane in 0..LANES {
            let chain = a.iter().zip(&b).fold(before.0[lane], |sum, (a, b)| a.0[row].mul_add(b.0[lane], sum));
            assert_eq!(tile[row].0[lane], chain);
        }
    }
}

#[test]
fn an_update_does_not_depend_on_the_threads_or_the_other_matrices() {
    let sizes = [[130, 70], [70, 300], [1, 9], [33, 33], [9, 1], [70, 300]];
    let settings = MuonSettings {
        coefficients: vec![[8.0, -23.0, 17.0], [3.9, -2.9, 0.55], [2.2, -1.6, 0.4]],
        margin: 1.02,
        row_decay: 0.95,
        tiny: 1e-12,
        rate: 0.1,
    };
    let outcome = |sizes: &[[usize; 2]], threads| {
        let mut given: Vec<_> = sizes
            .iter()
            .map(|[rows, columns]| {
                let numbers = panel(rows * columns, rows * columns);
                let numbers: Vec<f32> = numbers.iter().map(|line| line.0[0]).collect();
                (vec![1.0; rows * columns], numbers, vec![0.5; *rows])
            })
            .collect();
        let matrices = given
            .iter_mut()
            .map(|(weights, direction, row_squares)| Matrix { weights, direction, row_squares })
            .collect();
        // Numbers of before that must not matter.
        let mut scratch = vec![Line([f32::NAN; LANES]); muon_scratch(sizes, threads) / size_of::<Line>()];
        muon(matrices, &settings, &mut scratch, threads);
        given
    };
    let alone: Vec<_> = sizes.iter().flat_map(|&size| outcome(&[size], 1)).collect();
    assert!(alone.iter().all(|(weights, ..)| weights.iter().all(|weight| weight.is_finite())));
    for threads in [1, 2, 3, 8] {
        assert!(alone == outcome(&sizes, threads), "{threads}");
        assert!(alone[1..2] == outcome(&sizes[1..2], threads), "{threads}");
    }
    outcome(&[], 2);
}

/// Every operation of a vector type, on one vector.
#[inline(always)]
fn all_operations<V: Vector>(left: [f32; LANES], right: [f32; LANES]) -> Vec<u32> {
    let (a, b) = (V::load_f32(&left), V::load_f32(&right));
    let mut results = Vec::new();
    for vector in [
        a + b,
        a - b,
        a * b,
        a / b,
        a.mul_add(b, a),
        a.greater(b),
        V::choose_at_most(a, b, a, b),
        a.add_to_exponent(b),
        exp(a),
        V::splat(left[3]),
    ] {
        let (mut wide, mut narrow) = ([0.0; LANES], [0; LANES]);
        vector.store_f32(&mut wide);
        vector.store_bf16(&mut narrow);
        let mut back = [0.0; LANES];
        V::load_bf16(&narrow).store_f32(&mut back);
        // Which NaN an operation returns depends on the CPU.
        let bits = |x: f32| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
        results.extend(wide.into_iter().chain(back).map(bits));
        results.extend([bits(vector.sum()), bits(vector.greatest())]);
    }
    results
}

#[cfg(target_arch = "x86_64")]
mod kinds {
    use super::super::vector::{Avx2, Avx512};
    use super::*;
    use proptest::prelude::*;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn in_avx512(left: [f32; LANES], right: [f32; LANES]) -> Vec<u32> {
        all_operations::<Avx512>(left, right)
    }

    #[target_feature(enable = "avx2,fma")]
    fn in_avx2(left: [f32; LANES], right: [f32; LANES]) -> Vec<u32> {
        all_operations::<Avx2>(left, right)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn product_in_avx512() -> Vec<Line> {
        product::<Avx512>()
    }

    #[target_feature(enable = "avx2,fma")]
    fn product_in_avx2() -> Vec<Line> {
        product::<Avx2>()
    }

    #[test]
    fn all_kinds_of_vectors_give_the_same_product() {
        if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the CPU has it.
            assert!(unsafe { product_in_avx512() } == product::<Portable>());
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has it.
            assert!(unsafe { product_in_avx2() } == product::<Portable>());
        }
    }

    fn number() -> impl Strategy<Value = f32> {
        prop_oneof![any::<u32>().prop_map(f32::from_bits), -100.0f32..100.0, Just(0.0), Just(f32::INFINITY)]
    }

    proptest! {
        #[test]
        fn all_kinds_of_vectors_give_the_same_bits(
            left in prop::array::uniform16(number()),
            right in prop::array::uniform16(number()),
        ) {
            let expected = all_operations::<Portable>(left, right);
            if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                // SAFETY: the CPU has it.
                prop_assert_eq!(unsafe { in_avx512(left, right) }, expected.clone());
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has it.
                prop_assert_eq!(unsafe { in_avx2(left, right) }, expected);
            }
        }
    }
}
