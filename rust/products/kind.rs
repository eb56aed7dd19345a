//! Chooses the code for the CPU's instructions.

#[cfg(target_arch = "x86_64")]
use super::step::{Flushed, Pairs};
use super::step::{FlushedPortable, Fused};
use super::work::Work;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{Avx2, Avx512};
use crate::kernels::{Element, Portable, run_on_threads};

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
            let pairs = narrow::<T>() && avx512 && is_x86_feature_detected!("avx512bf16");
            let kinds =
                [(Kind::Pairs, pairs), (Kind::Avx512, avx512), (Kind::Avx2, avx2), (Kind::Portable, true)];
            kinds.into_iter().filter_map(|(kind, available)| available.then_some(kind))
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::iter::once(Kind::Portable)
    }

    pub fn best<T: Element>() -> Kind {
        Kind::available::<T>().next().expect("one is always there")
    }

    /// Numbers in a step.
    pub fn numbers(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Pairs => 2,
            _ => 1,
        }
    }

    pub fn run<T: Element>(self, work: &Work<T>) {
        let threads = work.threads();
        if threads == 1 { self.work(work) } else { run_on_threads(&|| self.work(work), threads, threads) }
    }

    #[cfg(target_arch = "x86_64")]
    fn work<T: Element>(self, work: &Work<T>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
        fn pairs<T: Element>(work: &Work<T>) {
            work.work::<Pairs>();
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512<T: Element>(work: &Work<T>) {
            if narrow::<T>() { work.work::<Flushed<Avx512>>() } else { work.work::<Fused<Avx512>>() }
        }

        #[target_feature(enable = "avx2,fma")]
        fn avx2<T: Element>(work: &Work<T>) {
            if narrow::<T>() { work.work::<Flushed<Avx2>>() } else { work.work::<Fused<Avx2>>() }
        }

        match self {
            // SAFETY: the CPU has it, or the kind would not be available.
            Kind::Pairs => unsafe { pairs(work) },
            Kind::Avx512 => unsafe { avx512(work) },
            Kind::Avx2 => unsafe { avx2(work) },
            Kind::Portable => portable(work),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn work<T: Element>(self, work: &Work<T>) {
        portable(work);
    }
}

fn portable<T: Element>(work: &Work<T>) {
    if narrow::<T>() { work.work::<FlushedPortable>() } else { work.work::<Fused<Portable>>() }
}

/// Whether the element is bf16.
fn narrow<T: Element>() -> bool {
    size_of::<T>() < size_of::<f32>()
}
