//! The Python bindings: the only folder that uses PyO3. Coarse calls, with the GIL released inside.

mod clean;
mod decode;
mod encode;
mod exclude;
mod gpt;
mod guard;
mod kernels;
mod loading;
mod memory;
mod near;
mod optim;
mod prepare;
mod read;
mod repetition;
mod train;

use crate::crew::Progress;
use crate::error::{Error, Result};
use crate::kernels::widest;
use crate::products;
use crate::split::Pattern;
use guard::guarded;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex};

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    guard::install();
    module.add_class::<encode::Encoder>()?;
    module.add_class::<encode::EncodeStream>()?;
    module.add_class::<read::Reader>()?;
    module.add_class::<repetition::Repetition>()?;
    module.add_class::<loading::Windows>()?;
    module.add_class::<gpt::NativeGPT>()?;
    module.add_class::<decode::NativeDecoder>()?;
    module.add_class::<decode::NativeChooser>()?;
    module.add_function(wrap_pyfunction!(clean::clean_text, module)?)?;
    module.add_function(wrap_pyfunction!(clean::drop_rules, module)?)?;
    module.add_function(wrap_pyfunction!(read::count_characters, module)?)?;
    module.add_function(wrap_pyfunction!(read::parquet_memory, module)?)?;
    module.add_function(wrap_pyfunction!(train::train_bpe, module)?)?;
    module.add_function(wrap_pyfunction!(train::count_task, module)?)?;
    module.add_function(wrap_pyfunction!(train::merge_counts, module)?)?;
    module.add_function(wrap_pyfunction!(train::count_partitions, module)?)?;
    module.add_function(wrap_pyfunction!(train::least_memory, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::plan_tasks, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::dedup_partitions, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::near_partitions, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::finish_near, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::least_room, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::run_prepare_stage, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::assembled_shards, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::check_dedup_cache, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::commit_dedup_cache, module)?)?;
    module.add_function(wrap_pyfunction!(prepare::xxh64_file, module)?)?;
    module.add_function(wrap_pyfunction!(exclude::build_exclude_set, module)?)?;
    module.add_function(wrap_pyfunction!(exclude::contaminated_documents, module)?)?;
    module.add_function(wrap_pyfunction!(near::shingles, module)?)?;
    module.add_function(wrap_pyfunction!(optim::adamw8bit_step, module)?)?;
    module.add_function(wrap_pyfunction!(optim::momentum8bit_step, module)?)?;
    module.add_function(wrap_pyfunction!(optim::subtract_rounded, module)?)?;
    module.add_function(wrap_pyfunction!(optim::muon_scratch_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(optim::muon_update, module)?)?;
    module.add_function(wrap_pyfunction!(loading::shuffled, module)?)?;
    module.add_function(wrap_pyfunction!(memory::release_file_pages, module)?)?;
    module.add_function(wrap_pyfunction!(memory::split_file_pages, module)?)?;
    module.add_function(wrap_pyfunction!(memory::keep_large_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(memory::release_freed_memory, module)?)?;
    module.add_function(wrap_pyfunction!(vectors, module)?)?;
    module.add_function(wrap_pyfunction!(pattern_regex, module)?)?;
    module.add_function(wrap_pyfunction!(recognise_pattern, module)?)?;
    module.add_function(wrap_pyfunction!(split_pieces, module)?)?;
    module.add_function(wrap_pyfunction!(guard::panic_on_purpose, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_norm, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_norm_backward, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_rotate, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_qk_norm, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_qk_norm_backward, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_gate, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_gate_backward, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_dropout, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_cross_entropy, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_accumulate, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::kernel_squares, module)?)?;
    Ok(())
}

/// From a name, a regex known to be one of the named patterns, or any other regex.
fn pattern(text: &str) -> Result<Pattern> {
    if let Some(pattern) = Pattern::named(text).or_else(|| Pattern::recognize(text)) {
        return Ok(pattern);
    }
    Pattern::custom(text)
        .map_err(|reason| Error::Invalid(format!("the pattern {text:?} is not a usable regex: {reason}")))
}

/// The reference regex of a named pattern.
#[pyfunction]
fn pattern_regex(py: Python<'_>, name: &str) -> PyResult<String> {
    guarded(|| pattern(name).map(|pattern| pattern.regex().to_owned()).map_err(|error| raise(py, error)))
}

/// The pieces of a text.
#[pyfunction]
fn split_pieces(py: Python<'_>, text: &str, pattern_name: &str) -> PyResult<Vec<String>> {
    guarded(|| {
        let pattern = pattern(pattern_name).map_err(|error| raise(py, error))?;
        let mut pieces = Vec::new();
        pattern.split(text, usize::MAX, |start, end| pieces.push(text[start..end].to_owned()));
        Ok(pieces)
    })
}

/// The vectors that models on a CPU use: the widest that the CPU has and RAMLET_VECTORS allows.
#[pyfunction]
fn vectors(py: Python<'_>) -> PyResult<&'static str> {
    guarded(|| {
        let allowed = widest::limit().map_err(|given| {
            let names = widest::NAMES.map(|(name, _)| name).join(", ");
            raise(py, Error::Invalid(format!("unknown {} '{given}': use one of {names}", widest::VARIABLE)))
        });
        allowed.map(|_| products::vectors().name())
    })
}

/// The name of the pattern that a regex stands for, if it is a known one.
#[pyfunction]
fn recognise_pattern(regex: &str) -> PyResult<Option<&'static str>> {
    guarded(|| Ok(Pattern::recognize(regex).and_then(|pattern| pattern.name())))
}

/// The exception of `ramlet.errors` for an error of ours.
fn raise(py: Python<'_>, error: Error) -> PyErr {
    let class = match &error {
        Error::Io { .. } => "SourceError",
        Error::Changed { .. } => "SourceChanged",
        Error::Broken { .. } | Error::MissingField { .. } | Error::NotUtf8 { .. } => "BrokenInput",
        Error::Window { .. } | Error::Budget { .. } => "BudgetError",
        Error::DiskFull { .. } => "DiskFull",
        Error::Cancelled => "Interrupted",
        Error::Invalid(_) => "SettingsError",
        Error::Dataset(_) => "DatasetError",
    };
    let facts = PyDict::new(py);
    if let Error::Budget { need, have, .. } = &error {
        let added = facts.set_item("needed", need).and_then(|()| facts.set_item("budget", have));
        if let Err(failed) = added {
            return failed;
        }
    }
    exception(py, class, error.to_string(), Some(&facts))
}

/// An exception of `ramlet.errors` by its name.
fn exception(py: Python<'_>, class: &str, sentence: String, facts: Option<&Bound<'_, PyDict>>) -> PyErr {
    let made = py
        .import("ramlet.errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call((&sentence,), facts));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(sentence),
    }
}

/// Carries Python exceptions through code that does not know them: a callback that fails puts its exception here and
/// cancels the work, and it is raised at the end instead of the cancellation.
#[derive(Default, Clone)]
struct Stash(Arc<Mutex<Option<PyErr>>>);

impl Stash {
    fn keep<T>(&self, result: PyResult<T>) -> Result<T> {
        result.map_err(|error| {
            self.0.lock().unwrap().get_or_insert(error);
            Error::Cancelled
        })
    }

    fn raise<T>(&self, py: Python<'_>, result: Result<T>) -> PyResult<T> {
        result.map_err(|error| self.0.lock().unwrap().take().unwrap_or_else(|| raise(py, error)))
    }
}

/// Checks for Ctrl-C, and calls the callback, if there is one, with `(stage, done, total)`.
fn watcher<'a>(
    stash: &'a Stash,
    callback: Option<&'a Py<PyAny>>,
) -> impl FnMut(&Progress) -> Result<()> + 'a {
    const STAGES: [&str; 3] = ["counting", "sorting", "merging"];
    let mut last: Option<std::time::Instant> = None;
    move |progress| {
        use std::sync::atomic::Ordering::Relaxed;
        if last.is_some_and(|last| last.elapsed() < std::time::Duration::from_millis(45)) {
            return Ok(());
        }
        last = Some(std::time::Instant::now());
        stash.keep(Python::attach(|py| {
            py.check_signals()?;
            if let Some(callback) = callback {
                let stage = STAGES[progress.stage.load(Relaxed) as usize];
                callback.call1(py, (stage, progress.done.load(Relaxed), progress.total.load(Relaxed)))?;
            }
            Ok(())
        }))
    }
}
