//! What a client asked for, message by message.

use super::deferred_close::DeferredClose;
use super::describe::{self, Attachment};
use super::device::Device;
use super::populate::Populator;
use super::region::{self, Function, Written};
use super::reset::Waiting;
use super::{Counters, DoorbellPolicy, dma, version};
use crate::log_limit::{LogLimit, limited};
use sluice_controller::DoorbellMode;
use sluice_memory::{MapError, Space};
use sluice_vfio_user::device::region as regions;
use sluice_vfio_user::region::{RegionAccess, WriteMulti};
use sluice_vfio_user::version::Capabilities;
use sluice_vfio_user::{Command, Errno, Header, MAX_DATA_TRANSFER};
use std::fmt;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

/// Writes in one message: a reset is among what each of them can be, and others have their turn after some messages.
const WRITES_MAX: usize = 32;

/// What handling a message needs besides the client's own state.
pub(super) struct Context<'a> {
    pub(super) name: &'a str,
    pub(super) device: &'a mut dyn Device,
    pub(super) space: &'a mut Space,
    pub(super) counters: &'a mut Counters,
    /// For descriptors that are of no use.
    pub(super) deferred_close: &'a mut DeferredClose,
    /// For memory that comes, if it is to be populated.
    pub(super) populator: Option<&'a Populator>,
    /// For what is said about clients; it outlives them, or they would come back for more.
    pub(super) complaints: &'a mut LogLimit,
    pub(super) now_ns: u64,
}

/// What becomes of a message that was understood.
#[derive(Debug)]
#[must_use]
pub(super) enum Next {
    /// Its reply goes out.
    Reply,
    /// Its reply goes out with the file that the doorbells are in.
    ReplyWithDoorbells,
    /// Its reply goes out when something is over.
    Wait(Waiting),
}

/// What becomes of a message that was not: an error goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nothing else happens.
    Message(Errno),
    /// The same, for what is wrong with a map.
    Memory(MapError),
    /// The connection ends as well.
    Client(Errno, &'static str),
}

impl Refusal {
    /// What the client is told.
    pub(super) fn errno(self) -> Errno {
        match self {
            Refusal::Message(errno) | Refusal::Client(errno, _) => errno,
            Refusal::Memory(error) => Errno::from_raw_os_error(error.errno()),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Refusal::Message(errno)
    }
}

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Self {
        Refusal::Memory(error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Message(errno) => errno.fmt(f),
            Refusal::Memory(error) => error.fmt(f),
            Refusal::Client(_, what) => f.write_str(what),
        }
    }
}

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not said its version.
    Connected,
    /// How its doorbells reach us is open until it asks for the regions.
    Negotiated { may_map: bool },
    /// It knows what it can map.
    Settled(DoorbellMode),
}

/// A client's side of the device.
#[derive(Debug)]
pub(super) struct Client {
    stage: Stage,
    policy: DoorbellPolicy,
    /// It has been logged that not all memory can be reached.
    told_of_holes: bool,
    /// Bytes of data that it takes in one message.
    data_max: usize,
    pub(super) function: Function,
}

impl Client {
    pub(super) fn new(policy: DoorbellPolicy, function: Function) -> Self {
        Self { stage: Stage::Connected, policy, told_of_holes: false, data_max: 0, function }
    }

    /// How the doorbells reach us, once that is settled.
    pub(super) fn doorbell_mode(&self) -> Option<DoorbellMode> {
        match self.stage {
            Stage::Settled(mode) => Some(mode),
            _ => None,
        }
    }

    /// Bytes of data that it takes in one message, and that we do.
    pub(super) fn data_max(&self) -> usize {
        self.data_max
    }

    /// Handles one message: does what it says and writes the payload of the reply. Takes the descriptors
    /// it has a use for out of `fds`.
    pub(super) fn handle(
        &mut self,
        header: &Header,
        payload: &[u8],
        fds: &mut Vec<OwnedFd>,
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<Next, Refusal> {
        if !header.is_command() {
            return Err(Refusal::Client(Errno::INVAL, "a message that is not a command"));
        }
        if self.stage == Stage::Connected {
            return self.negotiate(header, payload, reply);
        }
        match header.command {
            // By far the most frequent ones.
            Command::REGION_WRITE => return self.write(payload, reply, context),
            Command::REGION_READ => self.read(payload, reply, context)?,

            Command::DMA_MAP => self.map(payload, fds, context)?,
            Command::DMA_UNMAP => return unmap(payload, reply, context),
            Command::DEVICE_GET_INFO => describe::device_info(payload, reply)?,
            Command::DEVICE_GET_REGION_INFO => return self.region_info(payload, reply, context),
            Command::DEVICE_GET_REGION_IO_FDS => describe::region_io_fds(payload, reply)?,
            Command::DEVICE_GET_IRQ_INFO => {
                describe::irq_info(payload, self.function.interrupts.vectors(), reply)?
            }
            Command::DEVICE_SET_IRQS => self.function.interrupts.set(payload, fds)?,
            Command::DEVICE_RESET => return Ok(Next::Wait(self.reset(context))),
            Command::REGION_WRITE_MULTI => self.write_multi(payload, reply, context)?,
            Command::VERSION => return Err(Errno::INVAL.into()),
            _ => return Err(Errno::NOTSUP.into()),
        }
        Ok(Next::Reply)
    }

    /// The first message; anything but a VERSION we can speak ends the connection.
    fn negotiate(&mut self, header: &Header, payload: &[u8], reply: &mut Vec<u8>) -> Result<Next, Refusal> {
        if header.command != Command::VERSION {
            return Err(Refusal::Client(Errno::INVAL, "a message before VERSION"));
        }
        let capabilities = version::negotiate(payload, reply)
            .map_err(|errno| Refusal::Client(errno, "a VERSION message that cannot be agreed to"))?;
        let data_max = capabilities
            .as_ref()
            .map_or(Capabilities::default().max_data_xfer_size, |c| c.max_data_xfer_size);
        self.data_max = data_max.min(MAX_DATA_TRANSFER as u64) as usize;
        self.stage = Stage::Negotiated { may_map: self.policy.may_map(capabilities.as_ref()) };
        Ok(Next::Reply)
    }

    /// The doorbell mode is fixed when a client first asks for the regions, or writes to the device
    /// without: then it cannot have mapped anything.
    fn settle(&mut self, asked: bool, device: &mut dyn Device) -> DoorbellMode {
        let mode = match self.stage {
            Stage::Settled(mode) => return mode,
            Stage::Negotiated { may_map: true } if asked => DoorbellMode::Mapped,
            _ => DoorbellMode::Trapped,
        };
        device.set_doorbell_mode(mode);
        self.stage = Stage::Settled(mode);
        mode
    }

    fn region_info(
        &mut self,
        payload: &[u8],
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<Next, Refusal> {
        let mode = self.settle(true, context.device);
        Ok(match describe::region_info(payload, mode, reply)? {
            Attachment::Nothing => Next::Reply,
            Attachment::Doorbells => Next::ReplyWithDoorbells,
        })
    }

    fn map(
        &mut self,
        payload: &[u8],
        fds: &mut Vec<OwnedFd>,
        context: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let (address, reachable) = dma::map(context.space, payload, fds)?;
        context.populator.into_iter().for_each(|it| it.populate(context.space.unpopulated(address)));
        context.device.find_memory(context.space);
        context.counters.maps += 1;
        if !reachable && !std::mem::replace(&mut self.told_of_holes, true) {
            limited!(
                info,
                context.complaints,
                context.now_ns,
                drive = context.name,
                "some of the guest's memory came without a file descriptor: each access to it is a message to \
                 the client, and slow; give QEMU a memory backend with share=on"
            );
        }
        Ok(())
    }

    fn read(&self, payload: &[u8], reply: &mut Vec<u8>, context: &mut Context<'_>) -> Result<(), Errno> {
        let (access, _) = RegionAccess::read_from_prefix(payload).map_err(|_| Errno::INVAL)?;
        region::check(&access)?;
        reply.extend_from_slice(access.as_bytes());
        reply.resize(RegionAccess::SIZE + access.count as usize, 0);
        self.function.read(context.device, &access, &mut reply[RegionAccess::SIZE..]);
        Ok(())
    }

    fn write(
        &mut self,
        payload: &[u8],
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<Next, Refusal> {
        let (access, data) = RegionAccess::parse_write(payload).ok_or(Errno::INVAL)?;
        region::check(&access)?;
        reply.extend_from_slice(access.as_bytes());
        match self.write_region(&access, data, context) {
            Written::Reset => Ok(Next::Wait(self.reset(context))),
            _ => Ok(Next::Reply),
        }
    }

    /// Several posted writes in one message. All are checked before the first is done; they go to BAR0,
    /// where a write never has to wait.
    fn write_multi(
        &mut self,
        payload: &[u8],
        reply: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Result<(), Errno> {
        let writes = WriteMulti::parse(payload).filter(|writes| writes.len() <= WRITES_MAX);
        let writes = writes.ok_or(Errno::INVAL)?;
        for write in writes {
            region::check(&write.access())?;
            if write.access().region != regions::BAR0 || write.data().is_none() {
                return Err(Errno::INVAL);
            }
        }
        for write in writes {
            let _ = self.write_region(&write.access(), write.data().unwrap_or_default(), context);
        }
        reply.extend_from_slice(WriteMulti { count: writes.len() as u64 }.as_bytes());
        Ok(())
    }

    fn write_region(&mut self, access: &RegionAccess, data: &[u8], context: &mut Context<'_>) -> Written {
        if access.region == regions::BAR0 {
            self.settle(false, context.device);
        }
        let written = self.function.write(context.device, access, data, context.space, context.now_ns);
        if let Written::Doorbells(count) = written {
            context.counters.doorbells += count as u64;
        }
        written
    }

    fn reset(&mut self, context: &mut Context<'_>) -> Waiting {
        context.counters.resets += 1;
        Waiting::reset(context.device, &mut self.function, context.now_ns)
    }
}

/// A message that changes nothing that a queue served elsewhere has a copy of: questions, and writes to BAR0, where a
/// doorbell is heard everywhere and the controller sees to its registers itself. REGION_WRITE_MULTI writes nowhere else.
pub(super) fn is_known_to_all(header: &Header, payload: &[u8]) -> bool {
    match header.command {
        Command::REGION_READ
        | Command::REGION_WRITE_MULTI
        | Command::DEVICE_GET_INFO
        | Command::DEVICE_GET_REGION_INFO
        | Command::DEVICE_GET_REGION_IO_FDS
        | Command::DEVICE_GET_IRQ_INFO => true,
        Command::REGION_WRITE => {
            RegionAccess::read_from_prefix(payload).is_ok_and(|(access, _)| access.region == regions::BAR0)
        }
        _ => false,
    }
}

fn unmap(payload: &[u8], reply: &mut Vec<u8>, context: &mut Context<'_>) -> Result<Next, Refusal> {
    let removed = dma::unmap(context.space, context.device, payload, reply)?;
    context.counters.unmaps += 1;
    Ok(Next::Wait(Waiting::unmap(removed, context.now_ns)))
}

impl DoorbellPolicy {
    /// Whether a client with these capabilities may map the doorbells. One that takes no descriptors
    /// cannot.
    fn may_map(self, capabilities: Option<&Capabilities>) -> bool {
        let takes_fds = capabilities.is_none_or(|client| client.max_msg_fds > 0);
        match self {
            DoorbellPolicy::Auto => capabilities.is_none(),
            DoorbellPolicy::Trapped => false,
            DoorbellPolicy::Mapped => takes_fds,
        }
    }
}
