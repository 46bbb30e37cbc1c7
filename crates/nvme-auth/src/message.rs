//! The messages (Base, "DH-HMAC-CHAP Protocol Messages"), as they stand in the data of Authentication Send and
//! Receive.

use crate::{Group, Hash};
use std::fmt;

/// Bytes of the longest message that is taken, and that is ever sent.
pub const MESSAGE_MAX: usize = 4096;

/// Bytes of what all messages begin with, and of the fixed part of most.
const COMMON: usize = 6;
const FIXED: usize = 16;

/// AUTH_TYPE.
const TYPE_COMMON: u8 = 0;
const TYPE_DHCHAP: u8 = 1;

/// AUTH_ID; the first and the last two are of common messages.
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xf0;
const FAILURE1: u8 = 0xf1;

/// An authentication protocol descriptor of AUTH_Negotiate: its size, the identifiers in each of its two lists.
const DESCRIPTOR: usize = 64;
const IDENTIFIERS: usize = 30;
const DHCHAP: u8 = 1;

/// Reason of the failure of a transaction: the reason code explanation of AUTH_Failure1 and AUTH_Failure2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u8);

impl Failure {
    pub const FAILED: Failure = Failure(1);
    pub const PROTOCOL: Failure = Failure(2);
    pub const SECURE_CHANNEL: Failure = Failure(3);
    pub const HASH: Failure = Failure(4);
    pub const GROUP: Failure = Failure(5);
    pub const PAYLOAD: Failure = Failure(6);
    pub const MESSAGE: Failure = Failure(7);
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Failure::FAILED => f.write_str("the keys differ"),
            Failure::PROTOCOL => f.write_str("no authentication protocol in common"),
            Failure::SECURE_CHANNEL => {
                f.write_str("a secure channel is asked for, or not, by one side alone")
            }
            Failure::HASH => f.write_str("no hash function in common"),
            Failure::GROUP => f.write_str("no Diffie-Hellman group in common"),
            Failure::PAYLOAD => f.write_str("a message that is wrong in itself"),
            Failure::MESSAGE => f.write_str("a message that is not the next one"),
            Failure(code) => write!(f, "reason {code:#04x}"),
        }
    }
}

/// A message that came, checked as far as it can be by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Negotiate {
        /// SC_C.
        secure_channel: u8,
        /// Identifiers of hash functions and of groups for DH-HMAC-CHAP; none if that is not offered.
        offer: Option<(&'a [u8], &'a [u8])>,
    },
    Challenge(Challenge<'a>),
    Reply {
        response: &'a [u8],
        /// The host's own challenge, and its sequence number.
        challenge: Option<(&'a [u8], u32)>,
        public: &'a [u8],
    },
    Success1 {
        /// Bytes of a response (HL), whether there is one or not.
        length: usize,
        /// The controller's, if it was challenged.
        response: Option<&'a [u8]>,
    },
    Success2,
    Failure1(Failure),
    Failure2(Failure),
}

/// DH-HMAC-CHAP_Challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Challenge<'a> {
    pub(crate) hash: u8,
    pub(crate) group: u8,
    pub(crate) sequence: u32,
    pub(crate) challenge: &'a [u8],
    pub(crate) public: &'a [u8],
}

/// Returns whether the message is an AUTH_Negotiate, valid or not: a host begins with it.
pub fn is_negotiate(bytes: &[u8]) -> bool {
    bytes.starts_with(&[TYPE_COMMON, NEGOTIATE])
}

/// Reads a message; what is behind it does not matter. Gives its T_ID, too.
pub(crate) fn parse(bytes: &[u8]) -> Result<(u16, Message<'_>), Failure> {
    let (common, rest) = bytes.split_at_checked(COMMON).ok_or(Failure::PAYLOAD)?;
    let t_id = u16::from_le_bytes([common[4], common[5]]);
    let message = match (common[0], common[1]) {
        (TYPE_COMMON, NEGOTIATE) => negotiate(rest),
        (TYPE_DHCHAP, CHALLENGE) => challenge(bytes),
        (TYPE_DHCHAP, REPLY) => reply(bytes),
        (TYPE_DHCHAP, SUCCESS1) => success1(bytes),
        (TYPE_DHCHAP, SUCCESS2) => Some(Message::Success2),
        (TYPE_COMMON, FAILURE1) => rest.get(1).map(|why| Message::Failure1(Failure(*why))),
        (TYPE_COMMON, FAILURE2) => rest.get(1).map(|why| Message::Failure2(Failure(*why))),
        _ => return Err(Failure::MESSAGE),
    };
    Ok((t_id, message.ok_or(Failure::PAYLOAD)?))
}

fn negotiate(rest: &[u8]) -> Option<Message<'_>> {
    let (&[secure_channel, count], descriptors) = rest.split_first_chunk()?;
    let descriptors = descriptors.get(..usize::from(count) * DESCRIPTOR)?;
    let of_ours = descriptors.chunks_exact(DESCRIPTOR).find(|descriptor| descriptor[0] == DHCHAP);
    let offer = match of_ours {
        Some(descriptor) => {
            let (hashes, groups) = descriptor[4..].split_at(IDENTIFIERS);
            Some((hashes.get(..usize::from(descriptor[2]))?, groups.get(..usize::from(descriptor[3]))?))
        }
        None => None,
    };
    Some(Message::Negotiate { secure_channel, offer })
}

/// Parses the fixed part of a challenge or a reply: HL, DHVLEN, and the sequence number.
fn fixed(bytes: &[u8]) -> Option<(usize, usize, u32, &[u8])> {
    let (fixed, rest) = bytes.split_first_chunk::<FIXED>()?;
    let public = u16::from_le_bytes([fixed[10], fixed[11]]);
    let sequence = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
    Some((fixed[6].into(), public.into(), sequence, rest))
}

fn challenge(bytes: &[u8]) -> Option<Message<'_>> {
    let (length, public, sequence, rest) = fixed(bytes)?;
    let (challenge, rest) = rest.split_at_checked(length)?;
    let public = rest.get(..public)?;
    let (hash, group) = (bytes[8], bytes[9]);
    Some(Message::Challenge(Challenge { hash, group, sequence, challenge, public }))
}

fn reply(bytes: &[u8]) -> Option<Message<'_>> {
    let (length, public, sequence, rest) = fixed(bytes)?;
    let (response, rest) = rest.split_at_checked(length)?;
    // A reply has room for the challenge even if there is none.
    let (challenge, rest) = rest.split_at_checked(length)?;
    let public = rest.get(..public)?;
    let challenge = (bytes[8] & 1 != 0).then_some((challenge, sequence));
    Some(Message::Reply { response, challenge, public })
}

fn success1(bytes: &[u8]) -> Option<Message<'_>> {
    let (fixed, rest) = bytes.split_first_chunk::<FIXED>()?;
    let length = usize::from(fixed[6]);
    let response = match fixed[8] & 1 != 0 {
        true => Some(rest.get(..length)?),
        false => None,
    };
    Some(Message::Success1 { length, response })
}

impl Message<'_> {
    /// Encodes the message for the wire.
    pub(crate) fn encode(&self, t_id: u16) -> Vec<u8> {
        match *self {
            Message::Negotiate { secure_channel, offer } => {
                let (hashes, groups) = offer.unwrap_or_default();
                let mut descriptor = [0; DESCRIPTOR];
                descriptor[0] = DHCHAP;
                (descriptor[2], descriptor[3]) = (hashes.len() as u8, groups.len() as u8);
                descriptor[4..][..hashes.len()].copy_from_slice(hashes);
                descriptor[4 + IDENTIFIERS..][..groups.len()].copy_from_slice(groups);
                let head = common(TYPE_COMMON, NEGOTIATE, t_id);
                [&head[..], &[secure_channel, 1], &descriptor].concat()
            }
            Message::Challenge(Challenge { hash, group, sequence, challenge, public }) => {
                let head = fixed_part(CHALLENGE, t_id, challenge, [hash, group], public, sequence);
                [&head, challenge, public].concat()
            }
            Message::Reply { response, challenge, public } => {
                let none = vec![0; response.len()];
                let (own, sequence) = challenge.unwrap_or((&none, 0));
                let asks = [u8::from(challenge.is_some()), 0];
                let head = fixed_part(REPLY, t_id, response, asks, public, sequence);
                [&head, response, own, public].concat()
            }
            Message::Success1 { length, response } => {
                let answers = [u8::from(response.is_some()), 0];
                let none = vec![0; length];
                let response = response.unwrap_or(&none);
                [&fixed_part(SUCCESS1, t_id, response, answers, &[], 0), response].concat()
            }
            Message::Success2 => fixed_part(SUCCESS2, t_id, &[], [0; 2], &[], 0).to_vec(),
            Message::Failure1(why) => failure(FAILURE1, t_id, why),
            Message::Failure2(why) => failure(FAILURE2, t_id, why),
        }
    }
}

fn common(kind: u8, id: u8, t_id: u16) -> [u8; COMMON] {
    let [low, high] = t_id.to_le_bytes();
    [kind, id, 0, 0, low, high]
}

/// Encodes the fixed part of a DH-HMAC-CHAP message; HL is the length of `value`.
fn fixed_part(id: u8, t_id: u16, value: &[u8], flags: [u8; 2], public: &[u8], sequence: u32) -> [u8; FIXED] {
    let mut bytes = [0; FIXED];
    bytes[..COMMON].copy_from_slice(&common(TYPE_DHCHAP, id, t_id));
    bytes[6] = value.len() as u8;
    bytes[8..10].copy_from_slice(&flags);
    bytes[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
    bytes[12..].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

fn failure(id: u8, t_id: u16, why: Failure) -> Vec<u8> {
    /// The only reason code there is: authentication failed.
    const REASON: u8 = 1;
    [&common(TYPE_COMMON, id, t_id)[..], &[REASON, why.0]].concat()
}

/// Longest of all is a reply.
const _: () = assert!(FIXED + 2 * 64 + 1024 <= MESSAGE_MAX && Hash::ALL.len() <= IDENTIFIERS);
const _: () = assert!(Group::ALL.len() <= IDENTIFIERS);
