//! GFLOP/s of the products and of the CPU, with each kind of instructions:
//!
//! `cargo test --release --lib products::speed -- --ignored --nocapture`
//!
//! On one thread the time is that of the thread, so other processes matter little; on two it is the clock's. All
//! candidates are measured in turns, and the best time of each counts.

use super::*;
use crate::kernels::{Bf16, run_on_threads};
use std::hint::black_box;

const SIZES: [[usize; 3]; 14] = [
    [2048, 320, 960],
    [2048, 320, 1728],
    [2048, 864, 320],
    [2048, 320, 8192],
    [256, 320, 960],
    [8192, 320, 960],
    [2048, 96, 288],
    [2048, 96, 1024],
    [1024, 128, 384],
    [1024, 352, 128],
    [1, 320, 960],
    [4, 320, 960],
    [16, 320, 960],
    [16, 320, 8192],
];

const TURNS: usize = 7;

/// Seconds, of this thread if it is alone.
fn now(threads: usize) -> f64 {
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A number of operations, and what does them.
type Candidate<'a> = (f64, Box<dyn FnMut() + 'a>);

/// GFLOP/s of each candidate.
fn best(candidates: &mut [Candidate], threads: usize) -> Vec<f64> {
    let mut seconds = vec![f64::INFINITY; candidates.len()];
    for _ in 0..TURNS {
        for ((_, candidate), best) in candidates.iter_mut().zip(&mut seconds) {
            let repeats = ((0.004 / *best) as usize).clamp(1, 200);
            let start = now(threads);
            for _ in 0..repeats {
                candidate();
            }
            *best = best.min((now(threads) - start) / repeats as f64);
        }
    }
    candidates.iter().zip(seconds).map(|((operations, _), seconds)| operations / seconds / 1e9).collect()
}

/// Sixteen chains of fused multiply-adds in registers, and nothing else.
fn peak(steps: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;

        #[target_feature(enable = "avx512f")]
        fn avx512(steps: usize) -> f32 {
            let (mut sums, by) = ([_mm512_set1_ps(0.0); 16], _mm512_set1_ps(black_box(1e-3)));
            for _ in 0..steps {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(by, by, *sum);
                }
            }
            sums.iter().map(|&sum| _mm512_reduce_add_ps(sum)).sum()
        }

        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has it.
            black_box(unsafe { avx512(steps) });
            return;
        }
    }
    let (mut sums, by) = ([[0f32; 16]; 16], black_box(1e-3));
    for _ in 0..steps {
        for sum in sums.as_flattened_mut() {
            *sum += by * by;
        }
    }
    black_box(sums);
}

/// The same numbers each time.
fn numbers<T: Element>(length: usize) -> Vec<T> {
    (0..length).map(|i| T::narrow((i * 2654435761 % 1000003) as f32 / 5e5 - 1.0)).collect()
}

/// `W` is the precision of the weights.
fn candidates<'a, T: Element, W: Element>(kind: Kind, size: Size, threads: usize) -> [Candidate<'a>; 3] {
    let (x, w) = (numbers::<T>(size.rows * size.inner), numbers::<W>(size.columns * size.inner));
    let dy = numbers::<T>(size.rows * size.columns);
    let (mut y, mut dx, mut grad) = (dy.clone(), x.clone(), vec![0.0; w.len()]);
    let (x, w, dy) = (std::rc::Rc::new(x), std::rc::Rc::new(w), std::rc::Rc::new(dy));
    let memory = || vec![Line([0.0; LANES]); scratch(size, threads)];
    let (mut first, mut second, mut third) = (memory(), memory(), memory());
    let operations = 2.0 * (size.rows * size.inner * size.columns) as f64;
    let forward: Box<dyn FnMut()> = {
        let (x, w) = (x.clone(), w.clone());
        Box::new(move || forward_with(kind, &x, &w, None, &mut y, size, &mut first, threads))
    };
    let backward: Box<dyn FnMut()> = {
        let dy = dy.clone();
        Box::new(move || backward_with(kind, &dy, &w, &mut dx, size, &mut second, threads))
    };
    let accumulate: Box<dyn FnMut()> =
        Box::new(move || accumulate_with(kind, &dy, &x, &mut grad, size, &mut third, threads));
    [(operations, forward), (operations, backward), (operations, accumulate)]
}

#[test]
#[ignore = "a benchmark"]
fn speed() {
    const STEPS: usize = 20_000;
    for threads in [1, 2] {
        println!("\nGFLOP/s on {threads} threads: forward, backward, accumulate");
        for [rows, inner, columns] in SIZES {
            let size = Size { rows, inner, columns };
            let mut all: Vec<Candidate> = Vec::new();
            let mut names = Vec::new();
            for kind in Kind::available::<f32>().filter(|kind| *kind != Kind::Portable) {
                all.extend(candidates::<f32, f32>(kind, size, threads));
                names.push(format!("fp32 {kind:?}"));
            }
            for kind in Kind::available::<Bf16>().filter(|kind| *kind != Kind::Portable) {
                all.extend(candidates::<Bf16, Bf16>(kind, size, threads));
                names.push(format!("bf16 {kind:?}"));
                all.extend(candidates::<Bf16, f32>(kind, size, threads));
                names.push("fp32 weights".to_owned());
            }
            let operations = (threads * STEPS * 16 * 32) as f64;
            all.push((operations, Box::new(move || run_on_threads(&|| peak(STEPS), threads, threads))));
            let speeds = best(&mut all, threads);
            print!("{:16}", format!("{rows}x{inner}->{columns}"));
            for (name, speeds) in names.iter().zip(speeds.chunks(3)) {
                print!("  {name}:{:4.0}{:4.0}{:4.0}", speeds[0], speeds[1], speeds[2]);
            }
            let megabytes = (scratch(size, threads) * size_of::<Line>()) as f64 / 1e6;
            println!("  peak fp32:{:4.0}  scratch {megabytes:.1} MB", speeds[speeds.len() - 1]);
        }
    }
}
