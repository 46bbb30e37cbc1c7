//! The controller's role: it challenges the host.

use crate::field::Exchange;
use crate::message::{self, Failure, MESSAGE_MAX, Message};
use crate::response::{Prover, ResponseInput};
use crate::{Entropy, Group, Hash, Names, Terms};
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Authentication of one queue: transactions one after the other, in any number.
pub struct Controller {
    names: Names,
    terms: Arc<Terms>,
    state: State,
}

enum State {
    /// A transaction may begin.
    Idle,
    /// The host has a challenge to answer.
    Challenged(Box<Challenge>),
    /// The host is authenticated, and has to verify the controller's proof.
    Proved { t_id: u16 },
}

struct Challenge {
    t_id: u16,
    hash: Hash,
    exchange: Option<Exchange>,
    entropy: Entropy,
}

/// Result of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Message to send to the host.
    pub reply: Option<Vec<u8>>,
    pub verdict: Verdict,
}

/// State of the host's authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pending,
    /// The host is authenticated, and has accepted the controller's proof if it requested one.
    Authenticated,
    /// The queue is to be disconnected once the reply is delivered.
    Failed(Failure),
    /// The host goes no further, as it does when it does not believe the controller. The queue is to be
    /// disconnected.
    GivenUp(Failure),
}

impl Controller {
    pub fn new(names: Names, terms: Arc<Terms>) -> Self {
        Self { names, terms, state: State::Idle }
    }

    /// Takes a message of the host. `entropy` is used up, and never to be given again.
    pub fn take(&mut self, message: &[u8], entropy: Entropy) -> Progress {
        let state = std::mem::replace(&mut self.state, State::Idle);
        let bytes = &message[..message.len().min(MESSAGE_MAX)];
        let (t_id, message) = match message::parse(bytes) {
            Ok(it) => it,
            Err(why) => return failed(t_id_of(&state, bytes), why),
        };
        let next = match (state, message) {
            (_, Message::Failure2(why)) => {
                return Progress { reply: None, verdict: Verdict::GivenUp(why) };
            }
            // The host may begin anew at any time.
            (_, Message::Negotiate { secure_channel, offer }) => {
                self.challenge(t_id, secure_channel, offer, entropy)
            }
            (State::Challenged(it), _) if it.t_id != t_id => Err(Failure::PAYLOAD),
            (State::Challenged(it), Message::Reply { response, challenge, public }) => {
                self.verify(&it, response, challenge, public)
            }
            (State::Proved { t_id: ours }, _) if ours != t_id => Err(Failure::PAYLOAD),
            (State::Proved { .. }, Message::Success2) => {
                Ok(Progress { reply: None, verdict: Verdict::Authenticated })
            }
            _ => Err(Failure::MESSAGE),
        };
        next.unwrap_or_else(|why| failed(t_id, why))
    }

    /// Chooses hash and group from the host's offer, and challenges the host.
    fn challenge(
        &mut self,
        t_id: u16,
        secure_channel: u8,
        offer: Option<(&[u8], &[u8])>,
        entropy: Entropy,
    ) -> Result<Progress, Failure> {
        if secure_channel != 0 {
            return Err(Failure::SECURE_CHANNEL);
        }
        let (hashes, groups) = offer.ok_or(Failure::PROTOCOL)?;
        let ours = &self.terms.offer;
        let hash = ours.hashes.iter().find(|hash| hashes.contains(&hash.id()));
        let hash = *hash.ok_or(Failure::HASH)?;
        let group = ours.groups.iter().find(|group| groups.contains(&group.id()));
        let group: Group = *group.ok_or(Failure::GROUP)?;
        let exchange = Exchange::new(group, entropy.exponent.clone());
        let public = exchange.as_ref().map(Exchange::public).unwrap_or_default();
        let message = Message::Challenge(message::Challenge {
            hash: hash.id(),
            group: group.id(),
            sequence: entropy.sequence,
            challenge: &entropy.challenge[..hash.length()],
            public: &public,
        });
        let reply = Some(message.encode(t_id));
        self.state = State::Challenged(Box::new(Challenge { t_id, hash, exchange, entropy }));
        Ok(Progress { reply, verdict: Verdict::Pending })
    }

    /// Verifies the host's proof, and makes the controller's if the host requests that.
    fn verify(
        &mut self,
        given: &Challenge,
        response: &[u8],
        theirs: Option<(&[u8], u32)>,
        public: &[u8],
    ) -> Result<Progress, Failure> {
        let Challenge { t_id, hash, exchange, entropy } = given;
        if response.len() != hash.length() {
            return Err(Failure::PAYLOAD);
        }
        let shared = match exchange {
            Some(exchange) => Some(exchange.shared(public).ok_or(Failure::PAYLOAD)?),
            None if public.is_empty() => None,
            None => return Err(Failure::PAYLOAD),
        };
        let shared = shared.as_ref().map(|shared| &shared[..]);
        let challenge = &entropy.challenge[..hash.length()];
        let input = ResponseInput { hash: *hash, challenge, sequence: entropy.sequence, t_id: *t_id, shared };
        let expected = Prover::Host.response(&self.terms.host, &self.names, &input);
        if !bool::from(expected.ct_eq(response)) {
            return Err(Failure::FAILED);
        }
        let Some((challenge, sequence)) = theirs else {
            let success = Message::Success1 { length: hash.length(), response: None };
            let reply = Some(success.encode(*t_id));
            return Ok(Progress { reply, verdict: Verdict::Authenticated });
        };
        // Only a peer that plays both roles sends the controller's challenge back.
        let key = self.terms.controller.as_ref().filter(|_| *challenge != *input.challenge);
        let key = key.ok_or(Failure::FAILED)?;
        let proof =
            Prover::Controller.response(key, &self.names, &ResponseInput { challenge, sequence, ..input });
        self.state = State::Proved { t_id: *t_id };
        let success = Message::Success1 { length: hash.length(), response: Some(&proof) };
        let reply = Some(success.encode(*t_id));
        Ok(Progress { reply, verdict: Verdict::Pending })
    }
}

fn failed(t_id: u16, why: Failure) -> Progress {
    Progress { reply: Some(Message::Failure1(why).encode(t_id)), verdict: Verdict::Failed(why) }
}

/// Returns the transaction identifier for the answer to a malformed message.
fn t_id_of(state: &State, bytes: &[u8]) -> u16 {
    match (state, bytes.get(4..6)) {
        (State::Challenged(it), _) => it.t_id,
        (State::Proved { t_id }, _) => *t_id,
        (State::Idle, Some(&[low, high])) => u16::from_le_bytes([low, high]),
        _ => 0,
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("names", &self.names).finish_non_exhaustive()
    }
}
