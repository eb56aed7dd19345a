//! Rows shared among threads, and code chosen by what the processor has.
//!
//! A step of a small model calls hundreds of kernels that take microseconds each, between matrix products of
//! torch. Threads of our own would fight with those of torch's OpenMP, which spin for milliseconds after
//! each product: so we work in torch's team where we find it in the process, and start threads
//! for the call where not. Rows are handed out one portion at a time, so a thread that comes late costs nothing.

#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Portable, Vector};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub trait Kernel: Sync {
    /// Does these rows and no others. Must be `#[inline(always)]`, as all that it calls.
    fn rows<V: Vector>(&self, rows: Range<usize>);
}

/// Less memory than this is not worth a second thread.
const PORTION: usize = 64 << 10;

/// How many rows to hand out at a time, where a row has so many bytes in all operands together.
pub fn portion(row_bytes: usize) -> usize {
    (PORTION / row_bytes.max(1)).max(1)
}

/// All rows, `portion` at a time: every range begins at a multiple of it.
pub fn run<K: Kernel>(kernel: &K, rows: usize, portion: usize, threads: usize) {
    if threads <= 1 || rows <= portion {
        return on_this_processor(kernel, &AtomicUsize::new(0), rows, portion);
    }
    let next = AtomicUsize::new(0);
    together(&|| on_this_processor(kernel, &next, rows, portion), rows.div_ceil(portion), threads);
}

/// `work` on every thread of the team, where it takes what is left to do until nothing is: `portions` of it.
pub fn together<F: Fn() + Sync>(work: &F, portions: usize, threads: usize) {
    match openmp() {
        Some(parallel) => parallel.call(work, threads),
        None => std::thread::scope(|scope| {
            for _ in 1..threads.min(portions) {
                scope.spawn(work);
            }
            work();
        }),
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
fn on_this_processor<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
        take_portions::<Avx512, K>(kernel, next, rows, portion);
    }

    #[target_feature(enable = "avx2")]
    fn avx2<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
        take_portions::<Avx2, K>(kernel, next, rows, portion);
    }

    if is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
    {
        // SAFETY: the processor has what the function is compiled for; avx512bw implies avx512f.
        unsafe { avx512(kernel, next, rows, portion) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        unsafe { avx2(kernel, next, rows, portion) }
    } else {
        take_portions::<Portable, K>(kernel, next, rows, portion);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn on_this_processor<K: Kernel>(kernel: &K, next: &AtomicUsize, rows: usize, portion: usize) {
    take_portions::<Portable, K>(kernel, next, rows, portion);
}

/// Work, its argument, the number of threads, flags.
type Parallel =
    extern "C" fn(extern "C" fn(*mut libc::c_void), *mut libc::c_void, libc::c_uint, libc::c_uint);

/// The OpenMP runtime that torch brought along, by the entry point GCC's compiled code uses.
struct OpenMp {
    parallel: Parallel,
    /// A forked child inherits the runtime's belief in its threads, but not the threads.
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
        // Always with all threads: libgomp ends those that a smaller team leaves over.
        (self.parallel)(member::<F>, std::ptr::from_ref(work).cast_mut().cast(), threads as libc::c_uint, 0);
    }
}

/// Looked for once more after each failure: torch may come later than the first call.
fn openmp() -> Option<&'static OpenMp> {
    static FOUND: OnceLock<OpenMp> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    // SAFETY: a plain look-up by name among the process's global symbols.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: GOMP_parallel has had this signature since GCC 4.9, and LLVM's runtime gives it the same.
    let parallel = unsafe { std::mem::transmute::<*mut libc::c_void, Parallel>(symbol) };
    Some(FOUND.get_or_init(|| OpenMp { parallel, process: std::process::id() }))
}

/// Rows of a matrix that several threads write, each its own. The last may be shorter.
pub struct Rows<'a, T> {
    start: *mut T,
    total: usize,
    width: usize,
    borrowed: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `row` hands out parts that the caller keeps apart.
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
    /// No two threads may hold the same row, nor one thread twice.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn row(&self, row: usize) -> &mut [T] {
        let start = row * self.width;
        assert!(start < self.total);
        // SAFETY: within the matrix, and nobody else's by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), self.width.min(self.total - start)) }
    }
}
