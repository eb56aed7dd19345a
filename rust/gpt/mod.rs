//! The model on a CPU: a Llama, or with QK-norm a Qwen3, trained and run without any library.
//!
//! Everything that a model has is in one arena, whose layout is known before it is mapped: a step allocates nothing
//! that grows with the model. The specification is `engines/torch`.

mod activations;
mod arena;
mod backward;
mod cache;
mod cached_attention;
mod choice;
mod decode;
mod flat;
mod forward;
mod head;
mod init;
mod layout;
mod model;
mod sampling;
mod shape;
mod states;
mod update;

pub use cache::OutOfMemory;
pub use choice::{Choice, Optimizer, Precision};
pub use decode::{Decoder, Limits, Weights};
pub use layout::{Layout, Parts, Tensor, named};
pub use model::{Bad, Batch, Model};
pub use sampling::{Chooser, NotANumber, Sampling};
pub use shape::{LayerPlaces, Place, Places, Shape};
pub use states::Flat;
pub use update::Hyper;
