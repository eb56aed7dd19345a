//! Worker threads that share one job, while the calling thread reports progress and checks for Ctrl-C, which only
//! Python's main thread can do.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The progress that the watcher reports. Workers add to `done`; `stage` is only used in BPE training.
#[derive(Default)]
pub struct Progress {
    pub stage: AtomicU64,
    pub done: AtomicU64,
    pub total: AtomicU64,
    cancelled: Arc<AtomicBool>,
}

impl Progress {
    pub fn enter(&self, stage: Stage, total: u64) {
        self.stage.store(stage as u64, Relaxed);
        self.done.store(0, Relaxed);
        self.total.store(total, Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    /// For code that waits elsewhere and must notice the cancellation too.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        self.cancelled.clone()
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Stage {
    Counting,
    Sorting,
    Merging,
}

/// Called on the calling thread, several times a second. An error stops the work.
pub type Watch<'a> = dyn FnMut(&Progress) -> Result<()> + 'a;

const TICK: Duration = Duration::from_millis(50);

/// Runs `work(worker)` on `threads` threads and returns their results, in order. The first error cancels the others and
/// is returned.
pub fn crew<T: Send>(
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (finished, waiting) = channel();
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..threads.max(1))
            .map(|worker| {
                let finished = finished.clone();
                scope.spawn(move || {
                    // After a panic too, so that the watcher does not wait forever, and the others stop.
                    let _done = OnDrop(|| {
                        if std::thread::panicking() {
                            progress.cancel();
                        }
                        _ = finished.send(());
                    });
                    let result = work(worker);
                    if result.is_err() {
                        progress.cancel();
                    }
                    result
                })
            })
            .collect();
        let mut watched = Ok(());
        let mut left = handles.len();
        while left > 0 {
            match waiting.recv_timeout(TICK) {
                Ok(()) => left -= 1,
                Err(RecvTimeoutError::Timeout) if watched.is_ok() => {
                    watched = watch(progress);
                    if watched.is_err() {
                        progress.cancel();
                    }
                }
                Err(_) => {}
            }
        }
        let mut results = Vec::with_capacity(handles.len());
        let mut first_error = None;
        for handle in handles {
            match handle.join() {
                Ok(Ok(result)) => results.push(result),
                // A worker that stopped because of the cancellation is not its cause.
                Ok(Err(error)) => {
                    if first_error.is_none() || matches!(first_error, Some(Error::Cancelled)) {
                        first_error = Some(error);
                    }
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        watched?;
        match first_error {
            Some(error) => Err(error),
            None => Ok(results),
        }
    })
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_in_order_and_reports_the_cause() {
        let progress = Progress::default();
        let squares = crew(4, &progress, &mut |_| Ok(()), |n| Ok(n * n)).unwrap();
        assert_eq!(squares, [0, 1, 4, 9]);
        let failed = crew(3, &progress, &mut |_| Ok(()), |n| {
            if n == 1 {
                return Err(Error::Invalid("broken".into()));
            }
            while !progress.is_cancelled() {
                std::thread::yield_now();
            }
            Err::<(), _>(Error::Cancelled)
        });
        assert!(matches!(failed, Err(Error::Invalid(_))));
    }

    #[test]
    fn a_panic_stops_the_others_and_is_passed_on() {
        let progress = Progress::default();
        let run = || {
            crew(3, &progress, &mut |_| Ok(()), |n| {
                assert_ne!(n, 1, "on purpose");
                while !progress.is_cancelled() {
                    std::thread::yield_now();
                }
                Ok(())
            })
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    }

    #[test]
    fn the_watcher_can_stop_it() {
        let progress = Progress::default();
        let stopped = crew(2, &progress, &mut |_| Err(Error::Cancelled), |_| {
            while !progress.is_cancelled() {
                std::thread::yield_now();
            }
            Ok(())
        });
        assert!(matches!(stopped, Err(Error::Cancelled)));
    }
}
