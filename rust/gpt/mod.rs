//! The model on a CPU: a Llama, or with QK-norm a Qwen3, trained and run without any library.

mod cache;
mod cached_attention;
mod choosing;
mod decode;
mod shape;

pub use cache::OutOfMemory;
pub use choosing::{Chooser, NotANumber, Sampling};
pub use decode::{Decoder, Limits, Weights};
pub use shape::{LayerPlaces, Place, Places, Shape};
