//! Threads that wait for work between calls.
//!
//! A call offers seats to the threads and works itself. When it has no work left it takes back the seats that nobody
//! took: a thread that wakes up late delays nobody. Threads spin for some microseconds before they sleep, since the next
//! call usually comes soon; not if there are more of them than cores, nor for a while after one was interrupted as it
//! spun, which means that others need the core.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long to wait for the next call, or for the others, before sleeping.
const SPIN: Duration = Duration::from_micros(20);
/// A pause of a spinning thread that is not its own.
const INTERRUPTED: Duration = Duration::from_micros(100);
/// How long not to spin after that.
const CROWDED: Duration = Duration::from_millis(50);

/// The lower half of `seats`: threads at work. The upper half: seats that are free.
const FREE: u64 = 1 << 32;

pub struct Pool {
    /// A forked child inherits this record of threads, but not the threads.
    process: u32,
    cores: usize,
    created: Instant,
    /// Nanoseconds since `created` until which nobody spins.
    crowded_until: AtomicU64,
    /// Whether a call is under way.
    busy: AtomicBool,
    /// Threads that the last call wanted besides its own.
    others: AtomicUsize,
    seats: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// Used by the call that is under way.
    threads: UnsafeCell<Vec<Thread>>,
}

// SAFETY: `job` is written while there are no seats, and read by those who have one. `threads` is used by the call that
// has set `busy`.
unsafe impl Sync for Pool {}

struct Job {
    call: unsafe fn(*const ()),
    work: *const (),
    caller: Thread,
}

impl Pool {
    /// This process's pool. It is never freed: its threads wait for work until the process ends.
    pub fn get() -> &'static Pool {
        static POOL: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
        loop {
            let found = POOL.load(Acquire);
            // SAFETY: a pool is never freed.
            if let Some(pool) = unsafe { found.as_ref() }.filter(|pool| pool.process == std::process::id()) {
                return pool;
            }
            let new = Box::into_raw(Box::new(Pool::new()));
            if POOL.compare_exchange(found, new, AcqRel, Acquire).is_err() {
                // SAFETY: another thread was faster, and nobody has seen this one.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn new() -> Pool {
        Pool {
            process: std::process::id(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            created: Instant::now(),
            crowded_until: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            others: AtomicUsize::new(0),
            seats: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            threads: UnsafeCell::new(Vec::new()),
        }
    }

    /// Calls `work` on this thread and on up to `others` more; on this one alone if the pool is in use. `work` must not
    /// panic.
    pub fn call<F: Fn() + Sync>(&'static self, work: &F, others: usize) {
        unsafe fn call<F: Fn()>(work: *const ()) {
            // SAFETY: `Pool::call` passes an `F`, and waits for all who have a seat.
            unsafe { (*work.cast::<F>())() }
        }
        if others == 0 || self.busy.swap(true, Acquire) {
            return work();
        }
        let job =
            Job { call: call::<F>, work: std::ptr::from_ref(work).cast(), caller: std::thread::current() };
        // SAFETY: there are no seats, and `busy` was not set.
        let threads = unsafe {
            *self.job.get() = Some(job);
            &mut *self.threads.get()
        };
        while threads.len() < others {
            let thread = std::thread::Builder::new().name("ramlet".into()).spawn(|| self.work());
            match thread {
                Ok(thread) => threads.push(thread.thread().clone()),
                // The process has as many threads as it may have.
                Err(_) => break,
            }
        }
        self.others.store(others, Relaxed);
        self.seats.store(FREE * others.min(threads.len()) as u64, Release);
        for thread in &threads[..others.min(threads.len())] {
            thread.unpark();
        }
        work();
        let at_work = self.seats.fetch_and(FREE - 1, AcqRel) & (FREE - 1);
        if at_work > 0 {
            while !self.spin(|| self.seats.load(Acquire) == 0) {
                std::thread::park();
            }
        }
        self.busy.store(false, Release);
    }

    /// What each thread does.
    fn work(&self) {
        loop {
            let taken = self.seats.fetch_update(AcqRel, Relaxed, |seats| match seats >= FREE {
                true => Some(seats - FREE + 1),
                false => None,
            });
            if taken.is_ok() {
                // SAFETY: this thread has a seat, so the job stays until it has left it.
                let caller = unsafe {
                    let job = (*self.job.get()).as_ref().expect("a job");
                    (job.call)(job.work);
                    job.caller.clone()
                };
                if self.seats.fetch_sub(1, AcqRel) == 1 {
                    caller.unpark();
                }
            } else if !self.spin(|| self.seats.load(Relaxed) >= FREE) {
                std::thread::park();
            }
        }
    }

    /// Waits a little for something; returns whether it has happened.
    fn spin(&self, happened: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        let crowded = self.crowded_until.load(Relaxed);
        if self.others.load(Relaxed) >= self.cores || ((start - self.created).as_nanos() as u64) < crowded {
            return happened();
        }
        let mut last = start;
        loop {
            for _ in 0..32 {
                if happened() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - last > INTERRUPTED {
                let until = (now + CROWDED - self.created).as_nanos() as u64;
                self.crowded_until.store(until, Relaxed);
            }
            if now - start > SPIN {
                return happened();
            }
            last = now;
        }
    }
}
