-- Sliding log, see algorithm/sliding_log.rs. The log is one string: a header (tag, index of the
-- first entry that counts, running total before it) and 16 bytes an entry (instant, running total
-- including it). What has left stays in front until it is more than half; so an admission writes
-- one entry however long the log is.

local LOG = 9
local HEADER, ENTRY = 17, 16
local MAX_ENTRIES = 10000
local CHUNK = 16

local function load_log(key)
  local s = { tag = LOG, key = key, count = 0, head = 0, base = 0, last_at = 0, last_total = 0 }
  s.ats, s.totals = {}, {}
  local length = redis.call('STRLEN', key)
  if length >= HEADER + ENTRY then
    local tag, head, base = unpack_from('<Bdd', redis.call('GETRANGE', key, 0, HEADER - 1))
    if tag == LOG then
      s.count, s.head, s.base = (length - HEADER) / ENTRY, head, base
      local last = redis.call('GETRANGE', key, length - ENTRY, length - 1)
      s.last_at, s.last_total = unpack_from('<dd', last)
    end
  end
  s.rewrite = s.count == 0
  s.stored = s.count
  return s
end

-- Instant and running total of an entry. Entries are read by the dozen.
local function entry(s, index)
  if index == s.count - 1 then
    return s.last_at, s.last_total
  end
  if not s.ats[index] then
    local from = HEADER + index * ENTRY
    local some = redis.call('GETRANGE', s.key, from, from + CHUNK * ENTRY - 1)
    local position, at, total = 1
    for place = index, index + #some / ENTRY - 1 do
      at, total, position = unpack_from('<dd', some, position)
      s.ats[place], s.totals[place] = at, total
    end
  end
  return s.ats[index], s.totals[index]
end

-- The first of the entries from low on for which the test holds; the count when there is none.
local function first_entry(s, low, test)
  local high = s.count
  while low < high do
    local middle = (low + high - fmod(low + high, 2)) / 2
    if test(entry(s, middle)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- What still counts: instant, first entry, total before it, units, how far the clock is behind.
local function read_log(ask, s, now)
  if s.count == s.head then
    return now, s.head, s.base, 0, 0
  end
  local at = max(now, s.last_at)
  local gone, before = s.head, s.base
  local edge = at - ask.period
  if entry(s, gone) <= edge then
    gone = first_entry(s, gone + 1, function(instant)
      return instant > edge
    end)
    local _, total = entry(s, gone - 1)
    before = total
  end
  local ahead = at - now
  return at, gone, before, s.last_total - before, ahead
end

-- How long after at until so many of the used units have left.
local function leaves(ask, s, at, gone, before, units)
  if units == 0 then
    return 0
  end
  local target = before + units
  if target == s.last_total then
    return s.last_at + ask.period - at
  end
  local found = first_entry(s, gone, function(_, total)
    return total >= target
  end)
  return entry(s, found) + ask.period - at
end

-- How long until so many units pass; 0 when they do now, or never will.
local function wait_log(ask, s, now, wanted)
  local at, gone, before, used, ahead = read_log(ask, s, now)
  if wanted <= ask.units - used or wanted > ask.units then
    return 0
  end
  if ahead > ask.period then
    ahead = 0
  end
  return ahead + leaves(ask, s, at, gone, before, used - (ask.units - wanted))
end

-- Allowed, used, how long until the cost passes (when allowed: how far the clock is behind), how
-- long until nothing is used.
local function look_log(ask, s, now)
  local at, gone, before, used, ahead = read_log(ask, s, now)
  if ahead > ask.period then
    ahead = 0
  end
  local wanted = max(ask.cost, 1)
  local allowed = wanted <= max(0, ask.units - used)
  local wait = ahead
  if not allowed and wanted <= ask.units then
    wait = ahead + leaves(ask, s, at, gone, before, used - (ask.units - wanted))
  end
  local reset = ahead + leaves(ask, s, at, gone, before, used)
  return allowed, used, wait, reset
end

-- How long until one unit more than now can be taken.
local function more_log(ask, s, now)
  local _, _, _, used = read_log(ask, s, now)
  return wait_log(ask, s, now, max(0, ask.units - used) + 1)
end

-- Writes all entries anew, moved by so much and with totals that start at zero.
local function renew_log(s, shift)
  local body = redis.call('GETRANGE', s.key, HEADER + s.head * ENTRY, -1)
  local position, ats, totals, at, total = 1, {}, {}
  for index = 0, s.count - s.head - 2 do
    at, total, position = unpack_from('<dd', body, position)
    ats[index], totals[index] = at - shift, total - s.base
  end
  s.last_at, s.last_total = s.last_at - shift, s.last_total - s.base
  s.count, s.head, s.base = s.count - s.head, 0, 0
  s.ats, s.totals, s.renewed, s.rewrite, s.dirty = ats, totals, true, true, true
end

-- Forgets what has left; moves all that has not to now if the clock stepped back by more than a
-- period.
local function settle_log(ask, s, now)
  local _, gone, before, used, ahead = read_log(ask, s, now)
  if used == 0 then
    if s.count > 0 then
      s.dirty = true
    end
    s.count, s.head, s.base, s.last_at, s.last_total = 0, 0, 0, 0, 0
    s.ats, s.totals, s.rewrite, s.renewed = {}, {}, true, true
    return
  end
  if gone ~= s.head then
    s.head, s.base, s.dirty, s.moved = gone, before, true, true
  end
  if ahead > ask.period then
    renew_log(s, ahead)
  elseif s.last_total > EXACT / 2 then
    renew_log(s, 0)
  end
end

local function take_log(ask, s, now)
  local at = max(now, s.last_at)
  s.dirty = true
  local live = s.count - s.head
  if live > 0 and (s.last_at == at or live >= MAX_ENTRIES) then
    s.last_at, s.last_total = at, s.last_total + ask.cost
  else
    if live > 0 then
      s.ats[s.count - 1], s.totals[s.count - 1] = s.last_at, s.last_total
    else
      s.last_total = s.base
    end
    s.count, s.last_at, s.last_total = s.count + 1, at, s.last_total + ask.cost
  end
  s.touched = true
end

-- Gives back the oldest units first.
local function give_log(ask, s)
  if s.count == s.head then
    return
  end
  local paid = s.base + min(ask.cost, s.last_total - s.base)
  s.head = first_entry(s, s.head, function(_, total)
    return total > paid
  end)
  s.base, s.dirty, s.moved = paid, true, true
end

local function save_log(ask_period, s, now)
  if not s.dirty then
    return
  end
  if s.count == s.head then
    redis.call('DEL', s.key)
    return
  end
  local life = max(1, math.ceil((s.last_at + ask_period - now) / 1000))
  local last = pack('<dd', s.last_at, s.last_total)
  if s.rewrite or (s.head >= 64 and s.head > s.count / 2) then
    local body = ''
    if s.renewed then
      local parts = {}
      for index = s.head, s.count - 2 do
        parts[#parts + 1] = pack('<dd', s.ats[index], s.totals[index])
      end
      body = table.concat(parts)
    elseif s.stored > 0 then
      local from, to = s.head, min(s.stored, s.count - 1)
      if to > from then
        body = redis.call('GETRANGE', s.key, HEADER + from * ENTRY, HEADER + to * ENTRY - 1)
      end
    end
    redis.call('SET', s.key, pack('<Bdd', LOG, 0, s.base) .. body .. last, 'PX', life)
    return
  end
  if s.moved then
    redis.call('SETRANGE', s.key, 0, pack('<Bdd', LOG, s.head, s.base))
  end
  if s.touched then
    redis.call('SETRANGE', s.key, HEADER + (s.count - 1) * ENTRY, last)
    redis.call('PEXPIRE', s.key, life)
  end
end
