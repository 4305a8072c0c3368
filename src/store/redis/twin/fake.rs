//! As much of Redis as the scripts use, with a clock that is moved by hand.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value, Variadic};

use crate::{
    model::time::Timestamp,
    store::{
        charges::{Charges, Outcomes},
        redis::{
            batch::{Batch, Wanted},
            key::HashTag,
            number,
            reply::Reply,
            script,
        },
    },
};

/// A key's value and the millisecond at which it goes.
type Values = HashMap<Vec<u8>, (Vec<u8>, u64)>;

/// A server with one script.
pub(super) struct Fake {
    lua: Lua,
    decide: Function,
    shared: Rc<RefCell<Shared>>,
}

#[derive(Default)]
struct Shared {
    values: Values,
    now_millis: u64,
    expires: bool,
}

impl Fake {
    pub(super) fn new() -> Self {
        let lua = Lua::new();
        let shared = Rc::new(RefCell::new(Shared::default()));
        lua.globals().set("struct", structs(&lua)).unwrap();
        let redis = lua.create_table().unwrap();
        let server = Rc::clone(&shared);
        let call = lua
            .create_function(move |lua, args: Variadic<Value>| {
                let args: Vec<Vec<u8>> = args.iter().map(bytes).collect();
                Ok(server.borrow_mut().call(lua, &args))
            })
            .unwrap();
        redis.set("call", call).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let decide = lua.load(script::DECIDE).set_name("decide").into_function();
        Self {
            decide: decide.unwrap(),
            lua,
            shared,
        }
    }

    /// Answers requests in one batch at `now`.
    pub(super) fn ask(&self, requests: &[(Charges<'_>, Wanted)], now: Timestamp) -> Vec<Outcomes> {
        let tag = HashTag::new("", "twin");
        let mut batch = Batch::default();
        let places: Vec<usize> = requests
            .iter()
            .map(|(charges, wanted)| batch.add(charges, &tag, *wanted, now).unwrap())
            .collect();
        let reply = self.run(&batch, now);
        requests
            .iter()
            .zip(places)
            .map(|((charges, _), place)| reply.outcomes(charges, place).unwrap())
            .collect()
    }

    /// Runs the script on a batch as the server would.
    pub(super) fn run(&self, batch: &Batch, now: Timestamp) -> Reply {
        let keys: Vec<LuaString> = batch
            .names()
            .map(|name| self.lua.create_string(name).unwrap())
            .collect();
        let clock = number::micros(now).to_string();
        let message = batch.message(Timestamp::MAX);
        let args =
            [message.as_slice(), clock.as_bytes()].map(|arg| self.lua.create_string(arg).unwrap());
        self.shared.borrow_mut().tick(number::micros(now) / 1_000);
        self.lua.globals().set("KEYS", keys).unwrap();
        self.lua.globals().set("ARGV", args.to_vec()).unwrap();
        let answer: LuaString = self.decide.call(()).unwrap();
        let answer = bytes::Bytes::copy_from_slice(&answer.as_bytes());
        Reply::new(answer, batch.reply_length()).unwrap()
    }

    /// Empties the server. Keys may or may not go when their time has come.
    pub(super) fn begin(&self, expires: bool) {
        let mut shared = self.shared.borrow_mut();
        shared.values.clear();
        shared.expires = expires;
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        // As the server writes numbers: `%.17g`, for whole ones below 1e17 all digits.
        Value::Number(number) => {
            assert!(number.fract() == 0.0 && number.abs() < 1e17, "{number}");
            format!("{number:.0}").into_bytes()
        }
        other => panic!("no argument of a command: {other:?}"),
    }
}

fn integer(bytes: &[u8]) -> i64 {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

fn index(bytes: &[u8]) -> usize {
    usize::try_from(integer(bytes)).unwrap()
}

impl Shared {
    fn tick(&mut self, millis: u64) {
        self.now_millis = millis;
        if self.expires {
            // A key lives through its last millisecond.
            self.values.retain(|_, (_, goes)| *goes >= millis);
        }
    }

    fn call(&mut self, lua: &Lua, args: &[Vec<u8>]) -> Value {
        let name = String::from_utf8(args[0].clone()).unwrap();
        let text = |bytes: &[u8]| Value::String(lua.create_string(bytes).unwrap());
        let found = |key: &Vec<u8>| self.values.get(key).map(|(value, _)| value.clone());
        match name.as_str() {
            "GET" => found(&args[1]).map_or(Value::Boolean(false), |v| text(&v)),
            "MGET" => {
                let list = lua.create_table().unwrap();
                for key in &args[1..] {
                    let value = found(key).map_or(Value::Boolean(false), |v| text(&v));
                    list.push(value).unwrap();
                }
                Value::Table(list)
            }
            "STRLEN" => {
                let length = found(&args[1]).map_or(0, |v| v.len());
                Value::Integer(i64::try_from(length).unwrap())
            }
            "GETRANGE" => {
                let value = found(&args[1]).unwrap_or_default();
                let end = match integer(&args[3]) {
                    -1 => value.len(),
                    last => (usize::try_from(last).unwrap() + 1).min(value.len()),
                };
                text(value.get(index(&args[2])..end).unwrap_or_default())
            }
            "SET" => {
                let goes = match args[3].as_slice() {
                    b"KEEPTTL" => self.values.get(&args[1]).expect("no key without expiry").1,
                    b"PX" => self.now_millis + u64::try_from(integer(&args[4])).unwrap(),
                    other => panic!("{other:?}"),
                };
                self.values.insert(args[1].clone(), (args[2].clone(), goes));
                Value::Boolean(true)
            }
            "SETRANGE" => {
                let (value, _) = self
                    .values
                    .get_mut(&args[1])
                    .expect("no key without expiry");
                let end = index(&args[2]) + args[3].len();
                value.resize(value.len().max(end), 0);
                value[index(&args[2])..end].copy_from_slice(&args[3]);
                Value::Boolean(true)
            }
            "PEXPIRE" => {
                let life = u64::try_from(integer(&args[2])).unwrap();
                self.values.get_mut(&args[1]).unwrap().1 = self.now_millis + life;
                Value::Boolean(true)
            }
            "DEL" => {
                self.values.remove(&args[1]);
                Value::Boolean(true)
            }
            other => panic!("the fake server has no {other}"),
        }
    }
}

/// The `struct` library of Redis for the letters that the scripts use.
pub(in crate::store::redis) fn structs(lua: &Lua) -> Table {
    let table = lua.create_table().unwrap();
    let pack = lua.create_function(|lua, (format, values): (String, Variadic<f64>)| {
        let mut packed = Vec::new();
        for (letter, value) in letters(&format).zip(values.iter()) {
            match letter {
                'B' => packed.push(small(*value)),
                'H' => packed.extend_from_slice(&short(*value).to_le_bytes()),
                'd' => packed.extend_from_slice(&value.to_le_bytes()),
                other => panic!("pack {other}"),
            }
        }
        lua.create_string(&packed)
    });
    table.set("pack", pack.unwrap()).unwrap();
    let unpack = lua.create_function(
        |_, (format, packed, from): (String, LuaString, Option<usize>)| {
            let bytes = packed.as_bytes();
            let mut at = from.unwrap_or(1) - 1;
            let mut values = MultiValue::new();
            for letter in letters(&format) {
                let (value, width) = match letter {
                    'B' => (f64::from(bytes[at]), 1),
                    'H' => (f64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])), 2),
                    'd' => (f64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()), 8),
                    other => panic!("unpack {other}"),
                };
                values.push_back(Value::Number(value));
                at += width;
            }
            values.push_back(Value::Integer(i64::try_from(at + 1).unwrap()));
            Ok(values)
        },
    );
    table.set("unpack", unpack.unwrap()).unwrap();
    table
}

fn letters(format: &str) -> impl Iterator<Item = char> + '_ {
    let (order, letters) = format.split_at(1);
    assert_eq!(order, "<");
    letters.chars()
}

fn small(value: f64) -> u8 {
    let found = (0..=255).find(|byte| f64::from(*byte).total_cmp(&value).is_eq());
    found.unwrap()
}

fn short(value: f64) -> u16 {
    let short = u16::try_from(number::whole(value)).unwrap();
    assert!(f64::from(short).total_cmp(&value).is_eq());
    short
}
