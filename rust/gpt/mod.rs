//! The model on a CPU: a Llama, or with QK-norm a Qwen3, trained and run without any library.

mod shape;

pub use shape::{LayerPlaces, Place, Places, Shape};
