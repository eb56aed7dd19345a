//! Distributes rows among threads, and chooses the code for the CPU's vector instructions.
//!
//! A step of a small model calls hundreds of kernels that take microseconds each, between torch's matrix products.
//! Threads of our own would compete with those of torch's OpenMP, which spin for milliseconds after each product. So we
//! use torch's team of threads if it is in the process, and otherwise a pool of our own (`pool`). Rows are handed out
//! in small portions, so a thread that starts late does not delay the others.

use super::pool::Pool;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Portable, Vector};
#[cfg(target_arch = "x86_64")]
use super::widest::{Widest, allowed};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

pub trait Kernel: Sync {
    /// Processes these rows. Must be `#[inline(always)]`, like everything it calls.
    fn rows<V: Vector>(&self, rows: Range<usize>);
}

/// Less memory than this, in bytes, is not worth a second thread.
const PORTION: usize = 64 << 10;

/// How many rows to hand out at a time, if a row has `row_bytes` in all operands together.
pub fn portion(row_bytes: usize) -> usize {
    (PORTION / row_bytes.max(1)).max(1)
}

/// Processes all rows, `portion` at a time: every range begins at a multiple of it.
pub fn run<K: Kernel>(kernel: &K, rows: usize, portion: usize, threads: usize) {
    if threads <= 1 || rows <= portion {
        return run_widest(kernel, &AtomicUsize::new(0), rows, portion);
    }
    let next = AtomicUsize::new(0);
    run_on_threads(&|| run_widest(kernel, &next, rows, portion), rows.div_ceil(portion), threads);
}

/// Calls `work` on up to `threads` threads; it has to take portions until none of the `portions` is left. A panic is
/// passed on when all threads are done. A call within `work` has one thread.
pub fn run_on_threads<F: Fn() + Sync>(work: &F, portions: usize, threads: usize) {
    let failure = Mutex::new(None);
    let work = || {
        if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(work)) {
            failure.lock().unwrap().get_or_insert(panic);
        }
    };
    match openmp() {
        Some(parallel) => parallel.call(&work, threads),
        None => Pool::get().call(&work, threads.min(portions).saturating_sub(1)),
    }
    if let Some(panic) = failure.into_inner().unwrap() {
        std::panic::resume_unwind(panic);
    }
}

#[inline(always)]
fn take_portions<V: Vector, K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
    loop {
        let start = next.fetch_add(portion, Relaxed);
        if start >= rows {
            return;
        }
        kernel.rows::<V>(start..rows.min(start + portion));
    }
}

#[cfg(target_arch = "x86_64")]
fn run_widest<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
        take_portions::<Avx512, K>(kernel, next, rows, portion);
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
        take_portions::<Avx2, K>(kernel, next, rows, portion);
    }

    if allowed(Widest::Avx512)
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
    {
        // SAFETY: the CPU has what the function is compiled for; avx512bw implies avx512f.
        unsafe { avx512(kernel, next, rows, portion) }
    } else if allowed(Widest::Avx2) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: as above.
        unsafe { avx2(kernel, next, rows, portion) }
    } else {
        take_portions::<Portable, K>(kernel, next, rows, portion);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run_widest<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
    take_portions::<Portable, K>(kernel, next, rows, portion);
}

/// Arguments: function, its argument, number of threads, flags.
type Parallel =
    extern "C" fn(extern "C" fn(*mut libc::c_void), *mut libc::c_void, libc::c_uint, libc::c_uint);

/// The OpenMP runtime that torch has loaded, by the entry point that GCC's compiled code uses.
struct OpenMp {
    parallel: Parallel,
    /// A forked child inherits the runtime's record of its threads, but not the threads.
    process: u32,
}

impl OpenMp {
    fn call<F: Fn() + Sync>(&self, work: &F, threads: usize) {
        extern "C" fn member<F: Fn() + Sync>(work: *mut libc::c_void) {
            // SAFETY: `call` passes an `F` that outlives the team's work.
            unsafe { (*work.cast::<F>())() }
        }
        if std::process::id() != self.process {
            return work();
        }
        // Always with all threads: libgomp ends those that a smaller team does not need.
        (self.parallel)(member::<F>, std::ptr::from_ref(work).cast_mut().cast(), threads as libc::c_uint, 0);
    }
}

/// Searched again at times after a failure: torch may be loaded after the first call.
fn openmp() -> Option<&'static OpenMp> {
    static FOUND: OnceLock<OpenMp> = OnceLock::new();
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    /// A search takes as long as a short kernel.
    const BETWEEN_SEARCHES: usize = 64;
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    if !CALLS.fetch_add(1, Relaxed).is_multiple_of(BETWEEN_SEARCHES) {
        return None;
    }
    // SAFETY: a lookup by name among the process's global symbols.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: GOMP_parallel has had this signature since GCC 4.9, and has it in LLVM's runtime too.
    let parallel = unsafe { std::mem::transmute::<*mut libc::c_void, Parallel>(symbol) };
    Some(FOUND.get_or_init(|| OpenMp { parallel, process: std::process::id() }))
}

/// Rows of a matrix that several threads write, each its own rows. The last row may be shorter.
pub struct Rows<'a, T> {
    start: *mut T,
    total: usize,
    width: usize,
    borrowed: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `row` returns parts that the caller keeps disjoint.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    pub fn new(matrix: &'a mut [T], width: usize) -> Rows<'a, T> {
        assert!(width > 0);
        Rows { start: matrix.as_mut_ptr(), total: matrix.len(), width, borrowed: std::marker::PhantomData }
    }

    pub fn len(&self) -> usize {
        self.total.div_ceil(self.width)
    }

    /// # Safety
    /// No two threads may have the same row at once, nor one thread twice.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn row(&self, row: usize) -> &mut [T] {
        let start = row * self.width;
        assert!(start < self.total);
        // SAFETY: within the matrix, and not shared, as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), self.width.min(self.total - start)) }
    }
}
