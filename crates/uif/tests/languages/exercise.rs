//! Function that does everything a function can do; the ones in C and Python do the same.

use sluice_uif::{
    Answer, Buffer, Call, Control, Data, Done, Function, Held, Interest, Io, Operation, Options, Properties,
    Status, Translation,
};
use std::collections::HashMap;

/// Time from the order `alarm` to its answer, which the timer sends.
pub(crate) const ALARM_NS: u64 = 1_000_000;

pub(crate) struct Exercise {
    byte: u8,
    later: bool,
    commands: u64,
    pending: HashMap<u64, Held>,
}

impl Exercise {
    pub(crate) fn open(options: &Options) -> Result<Box<dyn Function>, String> {
        let byte = options.get("byte").and_then(|byte| byte.parse().ok());
        match byte.filter(|_| options.unknown_key(&["byte"]).is_none()) {
            Some(byte) => Ok(Box::new(Self { byte, later: false, commands: 0, pending: HashMap::new() })),
            None => Err("exercise has one option, byte".into()),
        }
    }

    fn change(&self, call: &mut Call<'_>) {
        call.data.iter_mut().for_each(|byte| *byte ^= self.byte);
    }

    fn ask(&mut self, call: &mut Call<'_>, io: &mut Io<'_>, own: Option<Buffer>) -> Answer {
        let token = self.commands;
        let (layer, data) = match own {
            Some(buffer) => {
                io.bytes(&buffer).copy_from_slice(call.data);
                (0, Data::Own(buffer))
            }
            None => (1, Data::Of(call.hold(), 0)),
        };
        if let Err(data) = io.request(layer, call.request, data, token) {
            if let Data::Own(buffer) = data {
                io.release(buffer);
            }
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        self.pending.insert(token, call.hold());
        Answer::Hold
    }

    fn submit_write(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        self.change(call);
        match call.request.offset / 512 % 5 {
            0 => {
                call.layer = 1;
                Answer::Forward
            }
            1 => {
                call.request.length /= 2;
                Answer::ForwardAndReturn(7)
            }
            2 => self.ask(call, io, None),
            3 => match io.buffer(call.data.len()) {
                Some(buffer) => self.ask(call, io, Some(buffer)),
                None => Answer::Finish(Status::CAPACITY_EXCEEDED),
            },
            _ => Answer::Finish(Status::LBA_OUT_OF_RANGE),
        }
    }
}

impl Function for Exercise {
    fn properties(&self) -> Properties {
        Properties { scratch: 4096, pool: 8 * 4096, transforms: true, ..Properties::NONE }
            .with(Operation::Read, Interest::After)
            .with(Operation::Write, Interest::Before)
            .with(Operation::Flush, Interest::Before)
            .with(Operation::WriteZeroes, Interest::Before)
    }

    fn start(&mut self, io: &mut Io<'_>) {
        let ok = io.layers().first().is_some_and(|below| below.block_size == 512);
        io.ready(if ok { Status::SUCCESS } else { Status::NAMESPACE_NOT_READY });
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        self.commands += 1;
        call.cookie[0] += call.request.offset + 1;
        let (from, length) = (call.request.offset, call.request.length);
        match call.request.operation {
            Operation::Write => return self.submit_write(call, io),
            Operation::Flush => {
                if std::mem::take(&mut self.later) {
                    io.answer(Ok("flushed".into()));
                }
                io.resume(call.hold(), 9, Status::WRITE_FAULT);
            }
            Operation::WriteZeroes => {
                let writable = call.request.fua;
                io.translate(Translation::Insert { from, length, to: from + 4096, writable });
                io.translate(Translation::Forget { from, length });
                io.translate(Translation::Protect { from, length: 512 });
                io.finish(call.hold(), Status::SUCCESS);
            }
            _ => return Answer::Forward,
        }
        Answer::Hold
    }

    fn returned(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        if call.request.operation == Operation::Read {
            self.change(call);
        }
        if call.stage == 9 {
            call.cookie[1] += 1;
        }
        Answer::Finish(call.status)
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        if let Some(buffer) = done.buffer {
            io.release(buffer);
        }
        if let Some(held) = self.pending.remove(&done.token) {
            io.finish(held, done.status);
        }
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        io.answer(Ok("woken".into()));
    }

    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        Control::Now(match text {
            "later" => {
                self.later = true;
                return Control::Later;
            }
            "alarm" => {
                io.wake_at(Some(io.now_ns() + ALARM_NS));
                return Control::Later;
            }
            "fail" if io.is_quiet() => Err("no, quietly".into()),
            "fail" => Err("no".into()),
            "long" => Ok("€".repeat(70_000)),
            text => Ok(format!("{text} {}", self.commands)),
        })
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        count("commands_total", self.commands);
    }
}
