//! The host's role: it answers the controller's challenge, and requests the controller's proof if it has the
//! key for that.

use crate::field::Exchange;
use crate::hash::Value;
use crate::message::{self, Challenge, Failure, Message};
use crate::response::{Prover, ResponseInput};
use crate::{Entropy, Group, Hash, Names, Terms};
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The host's state in one transaction.
pub struct Host {
    names: Names,
    terms: Arc<Terms>,
    t_id: u16,
    state: State,
}

enum State {
    Negotiating(Entropy),
    /// The controller has the host's response, and perhaps a challenge whose response has to be this.
    Answered(Option<Value>),
    Over,
}

/// The host's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends this and receives the next message.
    Send(Vec<u8>),
    /// The host is authenticated. Sends this message, if there is one.
    Done(Option<Vec<u8>>),
    /// The transaction has failed. Sends this message, if the controller did not send the failure itself.
    Failed(Failure, Option<Vec<u8>>),
}

impl Host {
    /// Creates a transaction. `t_id` differs between all transactions of a queue; `entropy` must not be used
    /// again.
    pub fn new(names: Names, terms: Arc<Terms>, t_id: u16, entropy: Entropy) -> Self {
        Self { names, terms, t_id, state: State::Negotiating(entropy) }
    }

    /// Returns the first message.
    pub fn negotiate(&self) -> Vec<u8> {
        let hashes: Vec<u8> = self.terms.offer.hashes.iter().map(|hash| hash.id()).collect();
        let groups: Vec<u8> = self.terms.offer.groups.iter().map(|group| group.id()).collect();
        Message::Negotiate { secure_channel: 0, offer: Some((&hashes, &groups)) }.encode(self.t_id)
    }

    /// Takes a message of the controller.
    pub fn take(&mut self, message: &[u8]) -> Step {
        let state = std::mem::replace(&mut self.state, State::Over);
        let next = match (state, message::parse(message)) {
            (_, Err(why)) => Err(why),
            (_, Ok((_, Message::Failure1(why)))) => return Step::Failed(why, None),
            (_, Ok((t_id, _))) if t_id != self.t_id => Err(Failure::PAYLOAD),
            (State::Negotiating(entropy), Ok((_, Message::Challenge(given)))) => self.answer(&entropy, given),
            (State::Answered(expected), Ok((_, Message::Success1 { response, .. }))) => {
                self.verify(expected, response)
            }
            _ => Err(Failure::MESSAGE),
        };
        next.unwrap_or_else(|why| Step::Failed(why, Some(Message::Failure2(why).encode(self.t_id))))
    }

    fn answer(&mut self, entropy: &Entropy, given: Challenge<'_>) -> Result<Step, Failure> {
        let Challenge { hash, group, sequence, challenge, public } = given;
        let offer = &self.terms.offer;
        let hash = Hash::of(hash).filter(|hash| offer.hashes.contains(hash)).ok_or(Failure::HASH)?;
        let group = Group::of(group).filter(|group| offer.groups.contains(group)).ok_or(Failure::GROUP)?;
        if challenge.len() != hash.length() || public.len() != group.length() {
            return Err(Failure::PAYLOAD);
        }
        let exchange = Exchange::new(group, entropy.exponent.clone());
        let shared = match &exchange {
            Some(exchange) => Some(exchange.shared(public).ok_or(Failure::PAYLOAD)?),
            None => None,
        };
        let shared = shared.as_ref().map(|shared| &shared[..]);
        let input = ResponseInput { hash, challenge, sequence, t_id: self.t_id, shared };
        let response = Prover::Host.response(&self.terms.host, &self.names, &input);
        let own = &entropy.challenge[..hash.length()];
        // The controller's expected response.
        let expected = self.terms.controller.as_ref().map(|key| {
            let input = ResponseInput { challenge: own, sequence: entropy.sequence, ..input };
            Prover::Controller.response(key, &self.names, &input)
        });
        let challenge = expected.is_some().then_some((own, entropy.sequence));
        let public = exchange.as_ref().map(Exchange::public).unwrap_or_default();
        self.state = State::Answered(expected);
        Ok(Step::Send(Message::Reply { response: &response, challenge, public: &public }.encode(self.t_id)))
    }

    fn verify(&self, expected: Option<Value>, response: Option<&[u8]>) -> Result<Step, Failure> {
        let Some(expected) = expected else { return Ok(Step::Done(None)) };
        let response = response.ok_or(Failure::FAILED)?;
        match bool::from(expected.ct_eq(response)) {
            true => Ok(Step::Done(Some(Message::Success2.encode(self.t_id)))),
            false => Err(Failure::FAILED),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("names", &self.names).field("t_id", &self.t_id).finish_non_exhaustive()
    }
}
