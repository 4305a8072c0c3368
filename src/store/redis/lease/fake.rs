//! As much of Redis as the script of leases uses, with a clock that is moved by hand.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, VecDeque},
    rc::Rc,
};

use mlua::{Function, Lua, LuaString, Value as LuaValue, Variadic};
use redis::Value;

use super::{Granting, Message};
use crate::{
    model::time::Timestamp,
    store::{
        charges::{Charges, Outcomes},
        redis::{key::HashTag, number, script, twin::fake::structs},
    },
};

/// A server with one script, and one domain on it.
pub(in crate::store) struct Fake {
    lua: Lua,
    script: Function,
    server: Rc<RefCell<Server>>,
    tag: HashTag,
}

#[derive(Clone, Debug)]
enum Stored {
    Text(Vec<u8>),
    Set(BTreeMap<Vec<u8>, f64>),
    List(VecDeque<Vec<u8>>),
}

#[derive(Default)]
struct Server {
    values: HashMap<Vec<u8>, (Stored, Option<u64>)>,
    now_millis: u64,
}

impl Fake {
    pub(in crate::store) fn new() -> Self {
        let lua = Lua::new();
        let server = Rc::new(RefCell::new(Server::default()));
        lua.globals().set("struct", structs(&lua)).unwrap();
        let redis = lua.create_table().unwrap();
        let shared = Rc::clone(&server);
        let call = lua
            .create_function(move |lua, args: Variadic<LuaValue>| {
                let args: Vec<Vec<u8>> = args.iter().map(bytes).collect();
                Ok(shared.borrow_mut().call(lua, &args))
            })
            .unwrap();
        redis.set("call", call).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let script = lua.load(script::LEASES).set_name("leases");
        Self {
            script: script.into_function().unwrap(),
            lua,
            server,
            tag: HashTag::new("p", "twin"),
        }
    }

    /// Forgets everything.
    pub(in crate::store) fn begin(&self) {
        self.server.borrow_mut().values.clear();
    }

    /// A request for permits.
    pub(in crate::store) fn acquire(
        &self,
        request: &super::Request<'_, '_>,
        now: Timestamp,
    ) -> (Granting, Outcomes) {
        let message = Message::acquire(request, &self.tag, now);
        let granting = Granting::read(self.run(&message, now)).unwrap();
        super::outcomes(granting, request.charges, message.rates_length).unwrap()
    }

    /// See [`Message::undo`].
    pub(in crate::store) fn undoing(
        &self,
        leases: &[crate::model::lease::LeaseId],
        timed_out: bool,
        refunds: &Charges<'_>,
        now: Timestamp,
    ) -> Message {
        Message::undo(leases, timed_out, refunds, &self.tag, now)
    }

    /// Runs the script as the server would. Afterwards no key is without an expiry.
    pub(in crate::store) fn run(&self, message: &Message, now: Timestamp) -> Value {
        let text = |bytes: &[u8]| self.lua.create_string(bytes).unwrap();
        let mut keys: Vec<LuaString> = vec![text(self.tag.home().as_bytes())];
        keys.extend(message.counters.iter().map(|name| text(name)));
        let latest = number::micros(Timestamp::MAX).to_string();
        let clock = number::micros(now).to_string();
        let mut arguments: Vec<LuaString> = [message.operation, latest.as_str(), clock.as_str()]
            .iter()
            .map(|argument| text(argument.as_bytes()))
            .collect();
        arguments.extend(message.arguments.iter().map(|argument| text(argument)));
        self.server.borrow_mut().tick(number::micros(now) / 1_000);
        self.lua.globals().set("KEYS", keys).unwrap();
        self.lua.globals().set("ARGV", arguments).unwrap();
        let answer: LuaValue = self.script.call(()).unwrap();
        self.server.borrow().check();
        value(&answer)
    }
}

/// As the server makes an answer of what a script returns.
fn value(value_: &LuaValue) -> Value {
    match value_ {
        LuaValue::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Value::Int(*number),
        LuaValue::Number(number) => Value::Int(i64::try_from(number::whole(*number)).unwrap()),
        LuaValue::Table(table) => {
            let values = table.sequence_values::<LuaValue>();
            Value::Array(values.map(|inner| value(&inner.unwrap())).collect())
        }
        other => panic!("no answer of a script: {other:?}"),
    }
}

fn bytes(value: &LuaValue) -> Vec<u8> {
    match value {
        LuaValue::String(text) => text.as_bytes().to_vec(),
        LuaValue::Integer(number) => number.to_string().into_bytes(),
        // As the server writes numbers: `%.17g`.
        LuaValue::Number(number) if number.fract() == 0.0 && number.abs() < 1e17 => {
            format!("{number:.0}").into_bytes()
        }
        LuaValue::Number(number) => format!("{number}").into_bytes(),
        other => panic!("no argument of a command: {other:?}"),
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn real(bytes: &[u8]) -> f64 {
    match text(bytes) {
        "-inf" => f64::NEG_INFINITY,
        "+inf" => f64::INFINITY,
        other => other.parse().unwrap(),
    }
}

fn integer(bytes: &[u8]) -> i64 {
    text(bytes).parse().unwrap()
}

impl Server {
    fn tick(&mut self, millis: u64) {
        self.now_millis = millis;
        // A key lives through its last millisecond.
        self.values
            .retain(|_, (_, goes)| goes.is_some_and(|goes| goes >= millis));
    }

    fn check(&self) {
        for (key, (_, goes)) in &self.values {
            assert!(
                goes.is_some(),
                "{} has no expiry",
                String::from_utf8_lossy(key)
            );
        }
    }

    fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        match self.values.get(key) {
            Some((Stored::Text(text), _)) => Some(text),
            None => None,
            other => panic!("wrong kind: {other:?}"),
        }
    }

    fn set(&mut self, key: &[u8]) -> &mut BTreeMap<Vec<u8>, f64> {
        let entry = self.values.entry(key.to_vec());
        let (stored, _) = entry.or_insert_with(|| (Stored::Set(BTreeMap::new()), None));
        match stored {
            Stored::Set(set) => set,
            other => panic!("wrong kind: {other:?}"),
        }
    }

    fn list(&mut self, key: &[u8]) -> &mut VecDeque<Vec<u8>> {
        let entry = self.values.entry(key.to_vec());
        let (stored, _) = entry.or_insert_with(|| (Stored::List(VecDeque::new()), None));
        match stored {
            Stored::List(list) => list,
            other => panic!("wrong kind: {other:?}"),
        }
    }

    /// Empty sets and lists are no keys.
    fn prune(&mut self, key: &[u8]) {
        let empty = match self.values.get(key) {
            Some((Stored::Set(set), _)) => set.is_empty(),
            Some((Stored::List(list), _)) => list.is_empty(),
            _ => false,
        };
        if empty {
            self.values.remove(key);
        }
    }

    /// Members by score, then by name.
    fn sorted(&mut self, key: &[u8]) -> Vec<(Vec<u8>, f64)> {
        let set = self.set(key);
        let mut members: Vec<_> = set
            .iter()
            .map(|(name, score)| (name.clone(), *score))
            .collect();
        members.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        self.prune(key);
        members
    }

    fn call(&mut self, lua: &Lua, args: &[Vec<u8>]) -> LuaValue {
        let to_text = |bytes: &[u8]| LuaValue::String(lua.create_string(bytes).unwrap());
        let found = |bytes: Option<&Vec<u8>>| {
            bytes.map_or(LuaValue::Boolean(false), |bytes| to_text(bytes))
        };
        let count = |count: usize| LuaValue::Integer(i64::try_from(count).unwrap());
        let members = |members: Vec<(Vec<u8>, f64)>, scores: bool| {
            let table = lua.create_table().unwrap();
            for (name, score) in members {
                table.push(to_text(&name)).unwrap();
                if scores {
                    table.push(to_text(format!("{score}").as_bytes())).unwrap();
                }
            }
            LuaValue::Table(table)
        };
        let scores = args.last().is_some_and(|last| last == b"WITHSCORES");
        let key = &args[1];
        match text(&args[0]) {
            "GET" => found(self.get(key)),
            "MGET" => {
                let table = lua.create_table().unwrap();
                for key in &args[1..] {
                    table.push(found(self.get(key))).unwrap();
                }
                LuaValue::Table(table)
            }
            "SET" => {
                let goes = match args[3].as_slice() {
                    b"KEEPTTL" => self.values.get(key).unwrap().1,
                    b"PX" => Some(self.now_millis + u64::try_from(integer(&args[4])).unwrap()),
                    other => panic!("{other:?}"),
                };
                self.values
                    .insert(key.clone(), (Stored::Text(args[2].clone()), goes));
                LuaValue::Boolean(true)
            }
            "DEL" => count(usize::from(self.values.remove(key).is_some())),
            "EXISTS" => count(usize::from(self.values.contains_key(key))),
            "PEXPIRE" => {
                let goes = self.now_millis + u64::try_from(integer(&args[2])).unwrap();
                if let Some((_, expiry)) = self.values.get_mut(key) {
                    *expiry = Some(goes);
                }
                LuaValue::Integer(1)
            }
            "ZADD" if args[2] == b"XX" => {
                let set = self.set(key);
                if let Some(score) = set.get_mut(&args[4]) {
                    *score = real(&args[3]);
                }
                self.prune(key);
                LuaValue::Integer(0)
            }
            "ZADD" => {
                let added = self.set(key).insert(args[3].clone(), real(&args[2]));
                count(usize::from(added.is_none()))
            }
            "ZREM" => {
                let removed = self.set(key).remove(&args[2]).is_some();
                self.prune(key);
                count(usize::from(removed))
            }
            "ZCARD" => {
                let length = self.set(key).len();
                self.prune(key);
                count(length)
            }
            "ZRANGE" => {
                let mut all = self.sorted(key);
                let (from, to) = (integer(&args[2]), integer(&args[3]));
                if to >= 0 {
                    all.truncate(usize::try_from(to).unwrap() + 1);
                }
                let all = all.split_off(usize::try_from(from).unwrap().min(all.len()));
                members(all, scores)
            }
            "ZRANGEBYSCORE" | "ZREMRANGEBYSCORE" => {
                let (from, open) = match args[2].strip_prefix(b"(") {
                    Some(from) => (real(from), true),
                    None => (real(&args[2]), false),
                };
                let to = real(&args[3]);
                let within = |score: f64| score <= to && (score > from || (!open && score >= from));
                let mut all = self.sorted(key);
                all.retain(|(_, score)| within(*score));
                if text(&args[0]) == "ZRANGEBYSCORE" {
                    return members(all, scores);
                }
                for (name, _) in &all {
                    self.set(key).remove(name);
                }
                self.prune(key);
                count(all.len())
            }
            "RPUSH" => {
                let list = self.list(key);
                list.push_back(args[2].clone());
                count(list.len())
            }
            "LPOP" => {
                let first = self.list(key).pop_front();
                self.prune(key);
                found(first.as_ref())
            }
            "LLEN" => {
                let length = self.list(key).len();
                self.prune(key);
                count(length)
            }
            other => panic!("the fake server has no {other}"),
        }
    }
}
