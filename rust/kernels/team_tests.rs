//! The threads of a process without OpenMP.

use super::run_on_threads;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Counts how often each portion is taken.
fn portions_taken(portions: usize, threads: usize) -> Vec<usize> {
    let next = AtomicUsize::new(0);
    let taken: Vec<AtomicUsize> = (0..portions).map(|_| AtomicUsize::new(0)).collect();
    let work = || {
        while let Some(portion) = taken.get(next.fetch_add(1, SeqCst)) {
            portion.fetch_add(1, SeqCst);
        }
    };
    run_on_threads(&work, portions, threads);
    taken.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_portion_is_taken_once() {
    for threads in [0, 1, 2, 3, 8, 40] {
        for portions in [0, 1, 2, 7, 300] {
            assert_eq!(portions_taken(portions, threads), vec![1; portions]);
        }
    }
}

#[test]
fn many_short_calls_of_several_threads_at_once() {
    std::thread::scope(|scope| {
        for threads in [2, 2, 3, 5] {
            scope.spawn(move || (0..2000).for_each(|_| assert_eq!(portions_taken(3, threads), [1; 3])));
        }
    });
}

#[test]
fn work_is_over_when_the_call_returns() {
    for _ in 0..500 {
        let mut numbers = vec![0_usize; 64];
        let rows = super::Rows::new(&mut numbers, 1);
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let row = next.fetch_add(1, SeqCst);
                if row >= 64 {
                    return;
                }
                // SAFETY: each row is taken once.
                unsafe { rows.row(row)[0] = row };
            }
        };
        run_on_threads(&work, 64, 4);
        assert!(numbers.into_iter().eq(0..64));
    }
}

#[test]
fn a_call_within_a_call_has_one_thread() {
    let calls = AtomicUsize::new(0);
    let inner = || {
        calls.fetch_add(1, SeqCst);
    };
    let outer = || {
        let here = std::thread::current().id();
        let work = || {
            assert_eq!(std::thread::current().id(), here);
            inner();
        };
        run_on_threads(&work, 8, 4);
    };
    run_on_threads(&outer, 4, 4);
    assert!((1..=4).contains(&calls.into_inner()));
}

#[test]
fn a_panic_reaches_the_caller() {
    for guilty in [0, 1, 2, 5] {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                match next.fetch_add(1, SeqCst) {
                    portion if portion == guilty => panic!("portion {portion}"),
                    6.. => return,
                    _ => std::thread::yield_now(),
                }
            }
        };
        let panic = std::panic::catch_unwind(|| run_on_threads(&work, 6, 3)).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>(), Some(&format!("portion {guilty}")));
        assert_eq!(portions_taken(9, 3), [1; 9], "the threads are still there");
    }
}

#[test]
fn a_forked_child_has_threads_of_its_own() {
    assert_eq!(portions_taken(50, 3), [1; 50]);
    // SAFETY: the child does nothing but count, and leaves without cleaning up.
    match unsafe { libc::fork() } {
        0 => {
            let right = (0..20).all(|_| portions_taken(50, 3).iter().all(|&taken| taken == 1));
            // SAFETY: as above.
            unsafe { libc::_exit(if right { 0 } else { 1 }) }
        }
        child => {
            let mut status = -1;
            // SAFETY: a child of ours.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    assert_eq!(portions_taken(50, 3), [1; 50]);
}
