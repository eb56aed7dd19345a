//! How a model is trained, as `ramlet.engines.plan.Choice`: everything besides the shape that decides the layout.
//!
//! A new optimizer is a variant of [`Optimizer`] here, its states in states.rs, its step in update/, and its name in
//! `BUILT_IN` of engines/native/plan.py.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Fp32,
    Bf16,
}

impl Precision {
    pub fn named(name: &str) -> Option<Precision> {
        match name {
            "fp32" => Some(Precision::Fp32),
            "bf16" => Some(Precision::Bf16),
            _ => None,
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Precision::Fp32 => 4,
            Precision::Bf16 => 2,
        }
    }

    /// As safetensors calls it.
    pub fn dtype(self) -> &'static str {
        match self {
            Precision::Fp32 => "F32",
            Precision::Bf16 => "BF16",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    AdamW,
    AdamW8bit,
    Muon,
    Muon8bit,
}

impl Optimizer {
    pub fn named(name: &str) -> Option<Optimizer> {
        match name {
            "adamw" => Some(Optimizer::AdamW),
            "adamw8bit" => Some(Optimizer::AdamW8bit),
            "muon" => Some(Optimizer::Muon),
            "muon8bit" => Some(Optimizer::Muon8bit),
            _ => None,
        }
    }

    /// bf16 weights have to be rounded stochastically, or small updates are lost.
    pub fn updates(self, weights: Precision) -> bool {
        weights == Precision::Fp32 || self.is_8bit()
    }

    pub fn is_8bit(self) -> bool {
        matches!(self, Optimizer::AdamW8bit | Optimizer::Muon8bit)
    }

    pub fn is_muon(self) -> bool {
        matches!(self, Optimizer::Muon | Optimizer::Muon8bit)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Sequences in one forward pass, at most.
    pub micro_batch: usize,
    /// Tokens of a sequence, at most.
    pub seq_len: usize,
    /// Tokens whose logits exist at once.
    pub chunk: usize,
    /// Activation checkpointing.
    pub recompute: bool,
    pub optimizer: Optimizer,
    pub weights: Precision,
    /// Of matrix products.
    pub compute: Precision,
    pub dropout: f64,
    /// Tokens whose embedding gradients are added together, after those of the head (`held`).
    pub held: usize,
    /// Sequences whose gradients are summed before they are rounded to 8 bits; 0 if gradients are fp32.
    pub unit: usize,
    /// Without it there are weights and a forward pass only.
    pub training: bool,
    pub threads: usize,
}

impl Choice {
    pub fn tokens(&self) -> usize {
        self.micro_batch * self.seq_len
    }

    pub fn chunk_tokens(&self) -> usize {
        self.chunk.min(self.tokens())
    }
}
