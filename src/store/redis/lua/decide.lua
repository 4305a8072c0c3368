-- Decides the requests of one batch, in order, as if nobody else were there.
--
-- KEYS     the counters, each once
-- ARGV[1]  header; asks: what is asked of a counter (algorithm, limit, cost), each once; requests:
--          charges that name an ask and a counter
-- ARGV[2]  microseconds since 1970 in place of the server's clock; for tests
-- returns  the instant, and for each charge what was decided and the state it was decided on.
--          The instant alone: the batch came too late, nothing was decided.
--
-- The layout of all of these is in batch.rs and reply.rs. States are settled before they are used:
-- what has ended is forgotten, what was written under another limit is carried over.

local REFUND, QUOTA, SHADOW, FIRST, COUNT_DENIED = 1, 2, 4, 8, 16
local ALL_OR_NOTHING, QUOTA_PASSED, TELL_MORE, LOOK_ONLY = 1, 2, 4, 8
local ALLOWED, UNKNOWN_WINDOW, UNTOUCHED = 1, 2, 4
local SLIDING, QUEUE = 5, 8

local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local message = ARGV[1]
local latest, has_logs, ask_count, position = unpack_from('<dBH', message)
if now > latest then
  return pack('<d', now)
end

local asks, windows_unknown = {}, false
for index = 1, ask_count do
  local ask = {}
  ask.tag, ask.cost, ask.units, ask.period, position =
    unpack_from('<Bddd', message, position)
  if ask.tag == CALENDAR then
    ask.w0, ask.w1, ask.w2, ask.w3, position = unpack_from('<dddd', message, position)
    ask.unknown = now < ask.w0 or now >= ask.w3
    windows_unknown = windows_unknown or ask.unknown
  elseif ask.tag > SLIDING and ask.tag < LOG then
    if ask.tag == QUEUE then
      ask.patience, position = unpack_from('<d', message, position)
    end
    ask.cost_q, ask.cost_r, ask.bound_q, ask.bound_r, ask.ever, position =
      unpack_from('<ddddB', message, position)
    ask.ever = ask.ever == 1
    ask.drain = max(ask.units, 1)
  end
  asks[index] = ask
end

-- The counters -----------------------------------------------------------------------------------

-- A log may be long and is not read whole; with one among the counters each is read by itself.
local texts = {}
if has_logs == 0 then
  texts = redis.call('MGET', unpack(KEYS))
end
local states, periods = {}, {}

local function fresh(ask)
  return { tag = ask.tag, u = 0, a = 0, b = 0, p = ask.period, n = ask.drain }
end

local function read_state(ask, index)
  local text = texts[index]
  if text == nil then
    text = redis.call('GET', KEYS[index])
  end
  local tag = text and #text > 0 and text:byte() or 0
  if tag >= CLOCK and tag <= CALENDAR and ask.tag <= CALENDAR then
    local _, u, a, b = unpack_from('<Bddd', text)
    return { tag = tag, u = u, a = a, b = b, stored = u }
  elseif tag ~= ask.tag then
    -- A changed algorithm starts afresh.
    return fresh(ask)
  elseif tag == SLIDING then
    local _, u, a, b, p = unpack_from('<Bdddd', text)
    return { tag = tag, u = u, a = a, b = b, p = p, stored = u }
  end
  local _, u, a, b, p, n = unpack_from('<Bddddd', text)
  return { tag = tag, u = u, a = a, b = b, p = p, n = n, stored = u }
end

-- The counter's state under this ask at now.
local function state_of(ask, index)
  local s = states[index]
  if not s then
    if ask.tag == LOG then
      s = load_log(KEYS[index])
    else
      s = read_state(ask, index)
    end
    states[index] = s
  elseif ask.tag ~= s.tag and (ask.tag > CALENDAR or s.tag > CALENDAR) then
    local stored = s.stored
    s = fresh(ask)
    s.stored, states[index] = stored, s
  end
  local tag = ask.tag
  if tag <= CALENDAR then
    settle_window(ask, s, now)
    s.tag = tag
  elseif tag == SLIDING then
    settle_sliding(ask, s, now)
  elseif tag < LOG then
    settle_bucket(ask, s, now)
  end
  return s
end

-- Whether the cost passes (of nothing: whether one unit would), and what the answer is made of.
local function look(ask, s)
  local tag = ask.tag
  if tag <= CALENDAR then
    return max(ask.cost, 1) <= ask.units - s.a, s.u, s.a, s.b
  elseif tag == SLIDING then
    return max(ask.cost, 1) <= ask.units - (estimate(s, now)), s.u, s.a, s.b
  elseif tag < LOG then
    return bucket_allows(ask, s, now), s.u, s.a, s.b
  end
  return look_log(ask, s, now)
end

-- Whether the slot is near enough for a request to be held until it comes.
local function is_near(ask, s)
  return ask.tag ~= QUEUE or s.u - now <= ask.patience
end

local function take(ask, s, index, allowed)
  local tag = ask.tag
  if tag <= CALENDAR then
    take_window(ask, s, now, allowed)
  elseif tag == SLIDING then
    take_sliding(ask, s, now)
  elseif tag < LOG then
    take_bucket(ask, s, now)
  else
    take_log(ask, s, now)
  end
  s.dirty, periods[index] = true, ask.period
end

local function give(ask, s, index)
  local tag = ask.tag
  if tag <= CALENDAR then
    give_window(ask, s)
  elseif tag == SLIDING then
    give_sliding(ask, s)
  elseif tag < LOG then
    give_bucket(ask, s, now)
  else
    settle_log(ask, s, now)
    give_log(ask, s)
  end
  s.dirty, periods[index] = true, ask.period
end

-- The requests -----------------------------------------------------------------------------------

local answers = { pack('<d', now) }
-- Of the request: whether its answers tell more, and its answers about logs, which are finished
-- when the request is.
local tell_more, open_logs = false, {}

-- Puts an answer in its place: allowed or not, and what it is made of.
local function answer(place, bits, ask, s, wanted, allowed, x, y, z)
  if allowed then
    bits = bits + ALLOWED
  end
  if ask.tag == LOG then
    local more = tell_more and more_log(ask, s, now) or 0
    open_logs[#open_logs + 1] =
      { place = place, bits = bits, x = x, y = y, z = z, more = more, ask = wanted, s = s }
    answers[place] = ''
  else
    answers[place] = pack('<Bddd', bits, x, y, z)
  end
end

-- What an answer about a log tells of the wait depends on the whole request.
local function finish_logs()
  for _, open in ipairs(open_logs) do
    local again = wait_log(open.ask, open.s, now, max(open.ask.cost, 1))
    answers[open.place] =
      pack('<Bddddd', open.bits, open.x, open.y, open.z, again, open.more)
  end
  open_logs = {}
end

-- One charge that stands for itself; its answer goes to this place. One that was found near enough
-- together with the others is not asked for that again.
local function decide(place, ask, wanted, index, flags, near)
  local s = state_of(ask, index)
  local refund = flags % 2 == REFUND
  if ask.tag == LOG and ask.cost > 0 and not refund then
    settle_log(ask, s, now)
    periods[index] = ask.period
  end
  local allowed, x, y, z = look(ask, s)
  allowed = allowed and (near or is_near(ask, s))
  if refund then
    give(ask, s, index)
    if ask.tag == LOG then
      local _
      _, x, y, z = look(ask, s)
    end
    answer(place, 0, ask, s, wanted, true, x, y, z)
    return
  end
  if ask.cost > 0 and (allowed or (flags >= COUNT_DENIED and ask.tag <= CALENDAR)) then
    take(ask, s, index, allowed)
  elseif (s.changed or s.ended) and ask.cost > 0 then
    -- What has ended stays ended, also if the clock steps back.
    s.dirty = true
  end
  answer(place, 0, ask, s, wanted, allowed, x, y, z)
end

-- A clock that stepped back and a changed limit count from the first look on; what has ended need
-- not be written for that. A peek never writes.
local function keep_settled(ask, s, index)
  if ask.cost == 0 then
    return
  elseif ask.tag == LOG then
    if s.last_at + ask.period > now then
      settle_log(ask, s, now)
      periods[index] = ask.period
    end
  elseif s.changed then
    s.dirty = true
  end
end

-- All charges or none. Refunds are not part of the bargain: they are given back first, whatever
-- follows. The same counter twice adds up: the second looks with the sum of both.
local function decide_together(first, charges, quota_passed)
  local refused, quota, all_quota = false, quota_passed, not quota_passed
  local group, group_is_quota = false, false
  local function close()
    if group_is_quota then
      quota, all_quota = true, all_quota and group
    elseif group then
      refused = true
    end
  end
  for place, charge in ipairs(charges) do
    local flags = charge.flags
    if flags % 16 >= FIRST then
      if place > 1 then
        close()
      end
      group, group_is_quota = false, flags % 4 >= QUOTA
    end
    if flags % 2 == REFUND then
      decide(first + place, charge.ask, charge.look, charge.index, flags)
    else
      charge.s = state_of(charge.look, charge.index)
      keep_settled(charge.look, charge.s, charge.index)
      charge.allowed, charge.x, charge.y, charge.z = look(charge.look, charge.s)
      charge.far = charge.allowed and not is_near(charge.look, charge.s)
      charge.allowed = charge.allowed and not charge.far
      group = group or (not charge.allowed and flags % 8 < SHADOW)
    end
  end
  close()
  refused = refused or (quota and all_quota)
  for place, charge in ipairs(charges) do
    if charge.flags % 2 == REFUND then
      -- Done.
    elseif refused or charge.far then
      local allowed, x, y, z = charge.allowed, charge.x, charge.y, charge.z
      answer(first + place, UNTOUCHED, charge.ask, charge.s, charge.look, allowed, x, y, z)
    else
      local flags = charge.flags % COUNT_DENIED
      decide(first + place, charge.ask, charge.look, charge.index, flags, true)
    end
  end
end

local length = #message
while position <= length do
  local how, count
  how, count, position = unpack_from('<BH', message, position)
  tell_more = how % 8 >= TELL_MORE
  local first = #answers
  if how % 2 ~= ALL_OR_NOTHING and how < LOOK_ONLY and not windows_unknown then
    for place = 1, count do
      local ask, wanted, index, flags, behind = unpack_from('<HHHB', message, position)
      position = behind
      decide(first + place, asks[ask], asks[wanted], index, flags)
    end
  else
    local charges, unknown = {}, false
    for place = 1, count do
      local ask, wanted, index, flags, behind = unpack_from('<HHHB', message, position)
      position = behind
      charges[place] = { ask = asks[ask], look = asks[wanted], index = index, flags = flags }
      unknown = unknown or asks[ask].unknown
    end
    if unknown then
      for place, charge in ipairs(charges) do
        local s = { tag = charge.ask.tag, count = 0, head = 0, base = 0 }
        answer(first + place, UNKNOWN_WINDOW, charge.ask, s, charge.look, false, 0, 0, 0)
      end
    elseif how >= LOOK_ONLY then
      for place, charge in ipairs(charges) do
        local s = state_of(charge.look, charge.index)
        local allowed, x, y, z = look(charge.look, s)
        allowed = allowed and is_near(charge.look, s)
        answer(first + place, UNTOUCHED, charge.ask, s, charge.look, allowed, x, y, z)
      end
    elseif how % 2 == ALL_OR_NOTHING then
      decide_together(first, charges, how % 4 >= QUOTA_PASSED)
    else
      for place, charge in ipairs(charges) do
        decide(first + place, charge.ask, charge.look, charge.index, charge.flags)
      end
    end
  end
  if #open_logs > 0 then
    finish_logs()
  end
end

-- What changed is written. A counter lives as long as it differs from a fresh one.
for index, s in pairs(states) do
  if not s.dirty then
    -- Only looked at.
  elseif s.tag == LOG then
    save_log(periods[index], s, now)
  elseif s.u == 0 then
    if s.stored then
      redis.call('DEL', KEYS[index])
    end
  else
    local text
    if s.tag <= CALENDAR then
      text = pack('<Bddd', s.tag, s.u, s.a, s.b)
    elseif s.tag == SLIDING then
      text = pack('<Bdddd', s.tag, s.u, s.a, s.b, s.p)
    else
      text = pack('<Bddddd', s.tag, s.u, s.a, s.b, s.p, s.n)
    end
    if s.stored == s.u then
      redis.call('SET', KEYS[index], text, 'KEEPTTL')
    else
      local life = (s.u - now - fmod(s.u - now, 1000)) / 1000 + 1
      redis.call('SET', KEYS[index], text, 'PX', life)
    end
  end
end

return table.concat(answers)
