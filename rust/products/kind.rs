//! Chooses the code for the CPU's instructions.

#[cfg(target_arch = "x86_64")]
use super::step::{Flushed, Pairs, Step, flushed_mul_add};
use super::step::{FlushedPortable, Fused};
use super::work::Work;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{Avx2, Avx512, Bf16, LANES, Vector};
use crate::kernels::{Element, Portable, Widest, allowed, run_on_threads};
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// All kinds give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// AVX512_BF16, for bf16 only.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Kind {
    /// Those that the CPU has, the fastest first.
    pub fn available<T: Element>() -> impl Iterator<Item = Kind> {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let pairs = narrow::<T>()
                && avx512
                && is_x86_feature_detected!("avx512bf16")
                && !has_amx()
                && pairs_are_chains();
            let kinds =
                [(Kind::Pairs, pairs), (Kind::Avx512, avx512), (Kind::Avx2, avx2), (Kind::Portable, true)];
            kinds.into_iter().filter_map(|(kind, available)| available.then_some(kind))
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::iter::once(Kind::Portable)
    }

    pub fn best<T: Element>() -> Kind {
        Kind::available::<T>().find(|kind| allowed(kind.vectors())).expect("one is always there")
    }

    pub fn vectors(self) -> Widest {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Pairs => Widest::Avx512Bf16,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => Widest::Avx512,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => Widest::Avx2,
            Kind::Portable => Widest::Portable,
        }
    }

    /// Numbers in a step.
    pub fn numbers(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Pairs => 2,
            _ => 1,
        }
    }

    pub fn run<T: Element, W: Element>(self, work: &Work<T, W>) {
        let threads = work.threads();
        if threads == 1 { self.work(work) } else { run_on_threads(&|| self.work(work), threads, threads) }
    }

    #[cfg(target_arch = "x86_64")]
    fn work<T: Element, W: Element>(self, work: &Work<T, W>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
        fn pairs<T: Element, W: Element>(work: &Work<T, W>) {
            work.work::<Pairs>();
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512<T: Element, W: Element>(work: &Work<T, W>) {
            if const { narrow::<T>() } {
                work.work::<Flushed<Avx512>>()
            } else {
                work.work::<Fused<Avx512>>()
            }
        }

        #[target_feature(enable = "avx2,fma")]
        fn avx2<T: Element, W: Element>(work: &Work<T, W>) {
            if const { narrow::<T>() } { work.work::<Flushed<Avx2>>() } else { work.work::<Fused<Avx2>>() }
        }

        // `const`, here and above: the compiler generates no code for the other branch.
        match self {
            // SAFETY (all): the CPU has it, or the kind would not be available.
            Kind::Pairs if const { narrow::<T>() } => unsafe { pairs(work) },
            Kind::Pairs => unreachable!("only bf16 has pairs"),
            Kind::Avx512 => unsafe { avx512(work) },
            Kind::Avx2 => unsafe { avx2(work) },
            Kind::Portable => portable(work),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn work<T: Element, W: Element>(self, work: &Work<T, W>) {
        portable(work);
    }
}

/// CPUs with AMX (Intel's, from Sapphire Rapids on) leave bf16 to it: their instruction for pairs is slower than two
/// fused multiply-adds (0.76 times the speed of a step in `f32`).
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // the function is safe since Rust 1.94
fn has_amx() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    // SAFETY: every CPU with AVX-512 has this leaf.
    unsafe { std::arch::x86_64::__cpuid_count(7, 0) }.edx & AMX_BF16 != 0
}

/// Whether the instruction for pairs does what `flushed_mul_add` does twice. Its documentation says so, in words only; a
/// CPU that understands them differently gets the other instructions.
#[cfg(target_arch = "x86_64")]
pub fn pairs_are_chains() -> bool {
    /// A sum, and the factors of both products.
    type Case = (f32, [f32; 2], [f32; 2]);
    const LEAST: f32 = f32::MIN_POSITIVE;
    const TINY: f32 = 1.0 / (1u64 << 63) as f32; // its square is LEAST
    const CASES: [Case; LANES] = [
        (0.0, [0.0, 0.0], [0.0, 0.0]),
        (-0.0, [0.0, -1.0], [-0.0, 1.0]),
        (1.0, [4096.0, 4096.0], [-4096.0, 4096.0]), // the order of the products
        (1.0, [-4096.0, 4096.0], [4096.0, 4096.0]),
        (1.0, [3.0, 1.0 / (1 << 24) as f32], [-1.0, 1.0 / (1 << 24) as f32]),
        (1.0, [1.0, 1.0 / (1 << 24) as f32], [1.0, 1.0 / (1 << 24) as f32]), // rounded after each product
        (3.0, [1.0078125, 1.0078125], [-1.9921875, 1.9921875]),
        (LEAST / 2.0, [0.0, 0.0], [0.0, 0.0]), // denormal: the sum
        (0.0, [LEAST / 2.0, 4.0], [4.0, LEAST / 2.0]), // operands
        (LEAST * 1.5, [-TINY, TINY], [TINY, TINY]), // the sum between the products
        (-LEAST * 1.5, [TINY, TINY], [0.0, 0.0]), // the result
        (LEAST, [TINY / 2048.0, -TINY / 4096.0], [0.0, 0.0]), // the result, which rounds to a normal number
        (LEAST, [TINY / 2048.0, -TINY / 8192.0], [0.0, 0.0]),
        (LEAST, [TINY / 4096.0 * 1.5, -TINY / 8192.0], [0.0, 0.0]),
        (f32::MAX, [f32::MAX / 2.0, 0.0078125], [-1.0, 1e30]),
        (1.0, [f32::INFINITY, 1.0], [1.0, 1.0]),
    ];

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn with_pairs(sums: &[f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) -> [f32; LANES] {
        let mut results = [0.0; LANES];
        Pairs::step(Avx512::load_f32(a), Avx512::load_f32(b), Avx512::load_f32(sums)).store_f32(&mut results);
        results
    }

    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let narrow = |number: f32| Bf16::narrow(number);
        let pair = |first: f32, second: f32| {
            f32::from_bits(u32::from(narrow(first).0) << 16 | u32::from(narrow(second).0))
        };
        let sums = CASES.map(|(sum, ..)| sum);
        let a = CASES.map(|(_, first, second)| pair(first[0], second[0]));
        let b = CASES.map(|(_, first, second)| pair(first[1], second[1]));
        // SAFETY: callers know that the CPU has it.
        let results = unsafe { with_pairs(&sums, &a, &b) };
        CASES.iter().zip(results).all(|(&(sum, first, second), result)| {
            let mut expected = sum;
            for [a, b] in [first, second] {
                expected = flushed_mul_add(narrow(a).widen(), narrow(b).widen(), expected);
            }
            expected.to_bits() == result.to_bits()
        })
    })
}

fn portable<T: Element, W: Element>(work: &Work<T, W>) {
    if const { narrow::<T>() } { work.work::<FlushedPortable>() } else { work.work::<Fused<Portable>>() }
}

/// Whether the element is bf16.
const fn narrow<T: Element>() -> bool {
    size_of::<T>() < size_of::<f32>()
}
