//! Responses: proofs of the possession of a key (Base, "DH-HMAC-CHAP_Reply Message").

use crate::hash::Value;
use crate::{Hash, Key, Names};
use sluice_crypt::sealed;

/// The party that proves its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prover {
    Host,
    Controller,
}

/// Inputs of a response, beside key and names.
#[derive(Clone, Copy)]
pub(crate) struct ResponseInput<'a> {
    pub(crate) hash: Hash,
    pub(crate) challenge: &'a [u8],
    pub(crate) sequence: u32,
    pub(crate) t_id: u16,
    /// Shared Diffie-Hellman secret, if the two agreed on a group.
    pub(crate) shared: Option<&'a [u8]>,
}

impl Prover {
    /// Computes the response of a prover with this key.
    pub(crate) fn response(self, key: &Key, names: &Names, input: &ResponseInput<'_>) -> Value {
        /// SC_C: no secure channel is requested.
        const NO_CHANNEL: [u8; 1] = [0];
        let Names { hostnqn, subnqn } = names;
        let (label, own, other) = match self {
            Prover::Host => (&b"HostHost"[..], hostnqn, subnqn),
            Prover::Controller => (&b"Controller"[..], subnqn, hostnqn),
        };
        sealed(|| {
            let challenge = augmented(input);
            let parts: [&[u8]; 8] = [
                &challenge,
                &input.sequence.to_le_bytes(),
                &input.t_id.to_le_bytes(),
                &NO_CHANNEL,
                label,
                own.as_bytes(),
                &[0],
                other.as_bytes(),
            ];
            input.hash.mac(&key.of(own), &parts)
        })
    }
}

/// Returns the challenge, augmented with the shared secret.
fn augmented(input: &ResponseInput<'_>) -> Value {
    match input.shared {
        Some(shared) => input.hash.mac(&input.hash.digest(shared), &[input.challenge]),
        None => Value::of(input.challenge),
    }
}
