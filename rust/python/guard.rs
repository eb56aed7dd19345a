//! No panic crosses into Python: there it is not an `Exception`, so it would pass every `except` and end in a
//! traceback.

use super::exception;
use crate::crew;
use crate::error::Error;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

/// Message and place of the last panic of any thread.
static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Panics are raised as errors, so nothing is printed about them.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let said = format!(
            "{}: {}",
            info.location().map(ToString::to_string).unwrap_or_default(),
            text(info.payload())
        );
        // The thread that waits for a panicked one panics too, without a reason.
        if !said.ends_with(WAITED) {
            *LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(said);
        }
    }));
}

const WAITED: &str = "a scoped thread panicked";

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Wraps the body of every function and method that Python can call.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let said = LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let said = said.unwrap_or_else(|| text(&*payload));
        let sentence = format!(
            "this is a bug in ramlet, please report it with the command and this line: {} ({})",
            said.replace('\n', " "),
            env!("CARGO_PKG_VERSION"),
        );
        Err(Python::attach(|py| exception(py, "InternalError", sentence, None)))
    })
}

/// For the tests: panics here, or on one of several threads.
#[pyfunction]
pub fn panic_on_purpose(py: Python<'_>, threads: usize) -> PyResult<()> {
    guarded(|| {
        if threads == 0 {
            panic!("on purpose");
        }
        let progress = crew::Progress::default();
        let work = |worker| match worker {
            0 => panic!("on purpose"),
            _ => {
                while !progress.is_cancelled() {
                    std::thread::yield_now();
                }
                Err::<(), _>(Error::Cancelled)
            }
        };
        let done = py.detach(|| crew::crew(threads, &progress, &mut |_| Ok(()), work));
        done.map(drop).map_err(|error| super::raise(py, error))
    })
}
