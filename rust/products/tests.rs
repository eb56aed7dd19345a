//! Every product against the slow, obvious one, bit for bit; with every kind of instructions, number of threads and
//! division of the rows.

use super::step::flushed_mul_add;
use super::*;
use crate::kernels::Bf16;
use std::any::TypeId;

/// One step of a chain.
fn step<T: Element>(a: T, b: T, sum: f32) -> f32 {
    if TypeId::of::<T>() == TypeId::of::<Bf16>() {
        flushed_mul_add(a.widen(), b.widen(), sum)
    } else {
        a.widen().mul_add(b.widen(), sum)
    }
}

fn slow_forward<T: Element>(x: &[T], w: &[T], added: Option<&[T]>, size: Size) -> Vec<T> {
    let mut y = Vec::new();
    for row in 0..size.rows {
        for column in 0..size.columns {
            let mut sum = 0.0;
            for k in 0..size.inner {
                sum = step(x[row * size.inner + k], w[column * size.inner + k], sum);
            }
            y.push(T::narrow(added.map_or(sum, |added| sum + added[row * size.columns + column].widen())));
        }
    }
    y
}

fn slow_backward<T: Element>(dy: &[T], w: &[T], size: Size) -> Vec<T> {
    let mut dx = Vec::new();
    for row in 0..size.rows {
        for k in 0..size.inner {
            let mut sum = 0.0;
            for column in 0..size.columns {
                sum = step(dy[row * size.columns + column], w[column * size.inner + k], sum);
            }
            dx.push(T::narrow(sum));
        }
    }
    dx
}

fn slow_accumulate<T: Element>(dy: &[T], x: &[T], grad: &mut [f32], size: Size) {
    for row in 0..size.rows {
        for column in 0..size.columns {
            for k in 0..size.inner {
                let sum = &mut grad[column * size.inner + k];
                *sum = step(dy[row * size.columns + column], x[row * size.inner + k], *sum);
            }
        }
    }
}

/// What numbers a test has.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// Between -1 and 1.
    Ordinary,
    /// Products and sums around the least normal number, with zeros of both signs.
    Tiny,
    /// With a few infinities and NaN.
    NotFinite,
}

/// The same numbers for the same seed.
fn numbers<T: Element>(length: usize, seed: u64, of: Of) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 20
    };
    let mut number = || {
        let ordinary = (random() % 2_000_003) as f32 / 1e6 - 1.0;
        match (of, random() % 64) {
            (Of::Tiny, 0) => 0.0f32.copysign(ordinary),
            (Of::Tiny, _) => ordinary * 2f32.powi(-40 - (random() % 46) as i32),
            (Of::NotFinite, 0) => f32::INFINITY.copysign(ordinary),
            (Of::NotFinite, 1) => f32::NAN,
            _ => ordinary,
        }
    };
    (0..length).map(|_| T::narrow(number())).collect()
}

/// Which NaN an operation returns depends on the CPU.
fn bits<T: Element>(numbers: &[T]) -> Vec<u32> {
    numbers.iter().map(|x| if x.widen().is_nan() { 0x7fc0_0000 } else { x.widen().to_bits() }).collect()
}

fn some_scratch(size: Size, threads: usize) -> Vec<Line> {
    // Numbers of before that must not matter.
    vec![Line([f32::NAN; 16]); scratch(size, threads)]
}

fn compare<T: Element>(size: Size, of: Of, kinds: &[Kind], threads: &[usize]) {
    let x = numbers::<T>(size.rows * size.inner, 1, of);
    let w = numbers::<T>(size.columns * size.inner, 2, of);
    let dy = numbers::<T>(size.rows * size.columns, 3, of);
    let before = numbers::<f32>(size.columns * size.inner, 4, of);
    let expected = (
        bits(&slow_forward(&x, &w, None, size)),
        bits(&slow_forward(&x, &w, Some(&dy), size)),
        bits(&slow_backward(&dy, &w, size)),
        {
            let mut grad = before.clone();
            slow_accumulate(&dy, &x, &mut grad, size);
            bits(&grad)
        },
    );
    for &kind in kinds {
        for &threads in threads {
            let case = format!("{size:?} {of:?} {kind:?} {threads}");
            let memory = &mut some_scratch(size, threads);
            let mut y = vec![T::narrow(f32::NAN); size.rows * size.columns];
            forward_with(kind, &x, &w, None, &mut y, size, memory, threads);
            assert!(bits(&y) == expected.0, "forward {case}");
            forward_with(kind, &x, &w, Some(&dy), &mut y, size, memory, threads);
            assert!(bits(&y) == expected.1, "forward, added {case}");
            let mut dx = vec![T::narrow(f32::NAN); size.rows * size.inner];
            backward_with(kind, &dy, &w, &mut dx, size, memory, threads);
            assert!(bits(&dx) == expected.2, "backward {case}");
            let mut grad = before.clone();
            accumulate_with(kind, &dy, &x, &mut grad, size, memory, threads);
            assert!(bits(&grad) == expected.3, "accumulate {case}");
        }
    }
}

/// Weights of the other precision are those of the product's, rounded or widened.
fn compare_stored<T: Element, W: Element>(size: Size, of: Of, threads: usize) {
    let x = numbers::<T>(size.rows * size.inner, 1, of);
    let stored = numbers::<W>(size.columns * size.inner, 2, of);
    let w: Vec<T> = stored.iter().map(|number| T::narrow(number.widen())).collect();
    let dy = numbers::<T>(size.rows * size.columns, 3, of);
    let expected = (bits(&slow_forward(&x, &w, None, size)), bits(&slow_backward(&dy, &w, size)));
    for kind in Kind::available::<T>() {
        let case = format!("{size:?} {of:?} {kind:?} {threads}");
        let memory = &mut some_scratch(size, threads);
        let mut y = vec![T::narrow(f32::NAN); size.rows * size.columns];
        forward_with(kind, &x, &stored, None, &mut y, size, memory, threads);
        assert!(bits(&y) == expected.0, "forward {case}");
        let mut dx = vec![T::narrow(f32::NAN); size.rows * size.inner];
        backward_with(kind, &dy, &stored, &mut dx, size, memory, threads);
        assert!(bits(&dx) == expected.1, "backward {case}");
    }
}

#[test]
fn weights_of_the_other_precision() {
    for of in [Of::Ordinary, Of::Tiny, Of::NotFinite] {
        for [rows, inner, columns] in ODD_SIZES {
            let size = Size { rows, inner, columns };
            compare_stored::<Bf16, f32>(size, of, 1);
            compare_stored::<f32, Bf16>(size, of, 1);
        }
    }
    let size = Size { rows: 70, inner: 1100, columns: 75 };
    compare_stored::<Bf16, f32>(size, Of::Ordinary, 2);
    compare_stored::<f32, Bf16>(size, Of::Ordinary, 2);
}

/// The largest denormal numbers of `f32` round to the least normal one of bf16.
#[test]
fn weights_just_below_the_least_normal_number() {
    let stored: Vec<f32> = (0..40).map(|i| f32::from_bits(0x007f_7ff0 + 0x6_0000 * (i % 2) + i)).collect();
    let w: Vec<Bf16> = stored.iter().map(|&number| Bf16::narrow(number)).collect();
    let size = Size { rows: 1, inner: 40, columns: 1 };
    let x = vec![Bf16::narrow(1e30); 40];
    let expected = bits(&slow_forward(&x, &w, None, size));
    for kind in Kind::available::<Bf16>() {
        let mut y = [Bf16::default()];
        forward_with(kind, &x, &stored, None, &mut y, size, &mut some_scratch(size, 1), 1);
        assert_eq!(bits(&y), expected, "{kind:?}");
    }
}

fn compare_merged<T: Element>(size: Size, threads: usize) {
    let x = numbers::<T>(size.rows * size.inner, 1, Of::Ordinary);
    let dy = numbers::<T>(size.rows * size.columns, 3, Of::Ordinary);
    let rounding = Rounding { key: 77, first_index: 5 };
    let mut sums = vec![0.0; size.columns * size.inner];
    slow_accumulate(&dy, &x, &mut sums, size);
    let first = |length: usize| (vec![3i8; length], vec![110u8; length / SHARED]);
    let mut expected = first(sums.len());
    CodesMut { codes: &mut expected.0, exponents: &mut expected.1 }.add(&sums, rounding);
    for kind in Kind::available::<T>() {
        let mut found = first(sums.len());
        let grad = CodesMut { codes: &mut found.0, exponents: &mut found.1 };
        let memory = &mut vec![Line([f32::NAN; 16]); merged_scratch(size, threads)];
        accumulate_merged_with(kind, &dy, &x, grad, rounding, size, memory, threads);
        assert!(found == expected, "{size:?} {kind:?} {threads}");
    }
}

#[test]
fn gradients_in_8_bits() {
    for [rows, inner, columns] in [[1, 32, 1], [7, 96, 40], [33, 64, 13], [40, 160, 100], [1500, 64, 30]] {
        for threads in [1, 2] {
            compare_merged::<f32>(Size { rows, inner, columns }, threads);
            compare_merged::<Bf16>(Size { rows, inner, columns }, threads);
        }
    }
}

fn compare_all<T: Element>(sizes: &[[usize; 3]], of: Of, threads: &[usize]) {
    let kinds: Vec<Kind> = Kind::available::<T>().collect();
    for &[rows, inner, columns] in sizes {
        compare::<T>(Size { rows, inner, columns }, of, &kinds, threads);
    }
}

const ODD_SIZES: [[usize; 3]; 12] = [
    [1, 1, 1],
    [1, 33, 17],
    [3, 15, 33],
    [2, 64, 31],
    [5, 7, 3],
    [12, 16, 32],
    [13, 17, 33],
    [15, 3, 47],
    [17, 31, 1],
    [25, 33, 48],
    [33, 1, 15],
    [61, 37, 67],
];

#[test]
fn products_of_odd_sizes_are_chains_in_fp32() {
    compare_all::<f32>(&ODD_SIZES, Of::Ordinary, &[1, 2]);
}

#[test]
fn products_of_odd_sizes_are_chains_in_bf16() {
    compare_all::<Bf16>(&ODD_SIZES, Of::Ordinary, &[1, 2]);
}

/// More than one block of the inner dimension, of rows and of columns, in each of the three products.
#[test]
fn blocks_and_threads_change_no_bit() {
    let best = [Kind::best::<f32>()];
    for [rows, inner, columns] in [[601, 523, 37], [41, 37, 1200], [1100, 35, 65], [7, 2100, 40]] {
        compare::<f32>(Size { rows, inner, columns }, Of::Ordinary, &best, &[1, 2, 3, 4]);
    }
    let best = [Kind::best::<Bf16>()];
    for [rows, inner, columns] in [[30, 1101, 37], [29, 37, 2101], [2100, 35, 45], [5, 4200, 40]] {
        compare::<Bf16>(Size { rows, inner, columns }, Of::Ordinary, &best, &[1, 2, 3, 4]);
    }
}

#[test]
fn blocks_are_the_same_with_every_kind_of_instructions() {
    compare_all::<f32>(&[[26, 30, 530], [530, 20, 26]], Of::Ordinary, &[2]);
    compare_all::<Bf16>(&[[26, 30, 1030], [1030, 20, 26]], Of::Ordinary, &[2]);
}

#[test]
fn tiny_numbers() {
    compare_all::<f32>(&[[29, 31, 33], [3, 65, 17]], Of::Tiny, &[1]);
    compare_all::<Bf16>(&[[29, 31, 33], [3, 65, 17], [26, 1031, 8]], Of::Tiny, &[1]);
}

#[test]
fn numbers_that_are_not_finite_reach_the_result() {
    compare_all::<f32>(&[[29, 9, 33], [3, 17, 35]], Of::NotFinite, &[2]);
    compare_all::<Bf16>(&[[29, 9, 33], [3, 17, 35]], Of::NotFinite, &[2]);
}

fn compare_divisions<T: Element>(of: Of) {
    let size = Size { rows: 97, inner: 37, columns: 45 };
    let dy = numbers::<T>(size.rows * size.columns, 3, of);
    let x = numbers::<T>(size.rows * size.inner, 1, of);
    let before = numbers::<f32>(size.columns * size.inner, 4, of);
    for kind in Kind::available::<T>() {
        let grad = |at_once: usize| {
            let (mut grad, mut row) = (before.clone(), 0);
            while row < size.rows {
                let rows = at_once.min(size.rows - row);
                let part = Size { rows, ..size };
                let dy = &dy[row * size.columns..][..rows * size.columns];
                let x = &x[row * size.inner..][..rows * size.inner];
                accumulate_with(kind, dy, x, &mut grad, part, &mut some_scratch(part, 2), 2);
                row += rows;
            }
            bits(&grad)
        };
        let whole = grad(size.rows);
        for at_once in [1, 2, 16, 31, 50] {
            assert!(grad(at_once) == whole, "{kind:?} {of:?} {at_once}");
        }
    }
}

#[test]
fn divided_rows_give_the_same_gradient() {
    for of in [Of::Ordinary, Of::Tiny] {
        compare_divisions::<f32>(of);
        compare_divisions::<Bf16>(of);
    }
}

/// Where the result is rounded to the least normal number from below, the instructions return 0.
#[test]
fn a_step_of_bf16_at_the_least_normal_number() {
    let least = f32::MIN_POSITIVE;
    // Denormal numbers are multiples of 2^-149; numbers of 24 bits just below `least` are multiples of 2^-150.
    let near = 2f32.powi(-76);
    assert_eq!(near.mul_add(-near, least), least);
    assert_eq!(flushed_mul_add(near, -near, least), least);
    let (a, b) = (1.5 * 2f32.powi(-75), near);
    assert_eq!(a.mul_add(-b, least), least);
    assert_eq!(flushed_mul_add(a, -b, least), 0.0);
    assert_eq!(flushed_mul_add(-a, b, least), 0.0);
    assert!(flushed_mul_add(a, b, -least).is_sign_negative());
    // The numbers that reach this place in each kind: a row that leaves `least`, then one that takes a bit of it away.
    let size = Size { rows: 1, inner: 2, columns: 1 };
    let x = [Bf16::narrow(2f32.powi(-63)), Bf16::narrow(a)];
    let w = [Bf16::narrow(2f32.powi(-63)), Bf16::narrow(-b)];
    for kind in Kind::available::<Bf16>() {
        let mut y = [Bf16::default()];
        forward_with(kind, &x, &w, None, &mut y, size, &mut some_scratch(size, 1), 1);
        assert_eq!(y[0].0, 0, "{kind:?}");
    }
}

#[test]
fn scratch_for_many_rows_is_enough_for_fewer() {
    for inner in [96, 320, 864, 1030, 4096] {
        for columns in [32, 96, 1000, 8192, 50304] {
            let most = scratch(Size { rows: 4096, inner, columns }, 3);
            assert!(most * size_of::<Line>() <= 4 << 20, "{inner} {columns} {most}");
            for rows in [1, 16, 24, 25, 100, 273, 390, 511, 512, 513, 1023, 1024, 1025, 2048] {
                assert!(scratch(Size { rows, inner, columns }, 3) <= most);
            }
            for threads in 1..4 {
                for (element_bytes, numbers) in [(4, 1), (2, 1), (2, 2)] {
                    for rows in [1, 16, 24, 25, 100, 273, 390, 511, 512, 513, 1023, 1024, 1025, 2048, 4096] {
                        let size = Size { rows, inner, columns };
                        let whole = element_bytes == 4;
                        for (size, in_place) in
                            [(size, whole), (size.backward(), whole), (size.accumulate(), true)]
                        {
                            let blocks = Blocks::new(size, element_bytes, numbers, in_place, threads);
                            assert!(blocks.scratch() <= most, "{blocks:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Where the last number is that a product has written.
fn written<T: Element>(size: Size, training: bool, threads: usize) -> usize {
    let count = |rows: usize, columns: usize| vec![T::narrow(1.0); rows * columns];
    let (x, w, mut y) =
        (count(size.rows, size.inner), count(size.columns, size.inner), count(size.rows, size.columns));
    let memory = &mut some_scratch(size, threads);
    forward(&x, &w, None, &mut y, size, memory, threads);
    if training {
        let mut dx = count(size.rows, size.inner);
        backward(&y, &w, &mut dx, size, memory, threads);
        let mut grad = vec![0.0; size.columns * size.inner];
        accumulate(&y, &x, &mut grad, size, memory, threads);
    }
    memory.iter().rposition(|line| !line.0.iter().all(|number| number.is_nan())).map_or(0, |last| last + 1)
}

#[test]
fn what_is_written_of_scratch_memory() {
    fn check<T: Element>() {
        for [rows, inner, columns] in
            [[1, 300, 70], [24, 96, 200], [256, 160, 416], [128, 700, 96], [50, 1100, 64]]
        {
            let size = Size { rows, inner, columns };
            for training in [false, true] {
                let lines = written_scratch::<T>(size, training, false, 1);
                let found = written::<T>(size, training, 1);
                // The last panel of rows may be shorter.
                assert!(found <= lines && lines <= found + 16 * 12, "{size:?} {training} {found} {lines}");
                assert!(lines <= scratch(size, 1), "{size:?}");
                assert!(training || lines <= forward_scratch(size, 1), "{size:?}");
            }
            assert!(written::<T>(size, true, 2) <= written_scratch::<T>(size, true, false, 2), "{size:?}");
        }
    }
    check::<f32>();
    check::<Bf16>();
}

#[test]
fn products_of_nothing() {
    let empty: [f32; 0] = [];
    let (mut y, added) = ([7.0f32; 6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let size = Size { rows: 2, inner: 0, columns: 3 };
    let memory = &mut some_scratch(size, 2);
    forward(&empty, &empty, Some(&added), &mut y, size, memory, 2);
    assert_eq!(y, added);
    forward(&empty, &empty, None, &mut y, size, memory, 2);
    assert_eq!(y, [0.0; 6]);
    let size = Size { rows: 0, inner: 2, columns: 3 };
    let mut grad = [-0.0f32; 6];
    accumulate(&empty, &empty, &mut grad, size, memory, 2);
    assert!(grad.iter().all(|x| x.is_sign_negative()));
    backward(&empty, &grad, &mut [], size, memory, 2);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn pairs_are_used_if_the_cpu_has_them() {
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw") {
        assert!(kind::pairs_are_chains());
    }
}
