-- Limits on work in flight, see store/lease. Times are microseconds, holds are seconds.
--
-- Beside the counters of a domain, under its prefix (`home`):
--   z:KEY          the live leases of a limit: member id, permits and an `a` if it has no name; score
--                  the expiry. What is in flight is their sum and nothing else.
--   s:KEY          that sum, kept, and the estimates; made anew from the leases when it disagrees
--   a:KEY          leases without a name, by the order of their grants
--   g:KEY          until when refusals of requests without a name wait for their release
--   d:KEY          ids of ended leases that are remembered, oldest first
--   l:ID           a lease, alive or ended; r:REQUEST and n:KEY:NAME its id by other names
--   e: f:KEY:NAME  marks of releases that came early, and of refusals
--   b:REQUEST      the slot of a refused request
--   q              the latest fence

local call = redis.call
local home = KEYS[1]
local SECOND = 1000000
local REMEMBER_ENDED, REMEMBER_SLOT, REMEMBER_KEY = 60 * SECOND, 10 * SECOND, 600 * SECOND
local MOST_GHOSTS, BOUND_STEPS, HAIR = 10000, 256, 1e-4
local ID = 26

local now = tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end

-- What a key may live so that it is there until this instant.
local function life(till)
  local left = max(till - now, 0)
  return (left - fmod(left, 1000)) / 1000 + 1
end

local STATE = '<ddddddddddddddddddd'
local counters = {}

-- Makes the kept sum anew.
local function recount(k)
  local members = call('ZRANGE', k.set, 0, -1, 'WITHSCORES')
  k.live, k.in_flight, k.goes = #members / 2, 0, 0
  for place = 1, #members, 2 do
    k.in_flight = k.in_flight + tonumber(members[place]:match('^%d+', ID + 1))
  end
  k.first = tonumber(members[2]) or EXACT
  k.dirty = true
end

-- The estimates at an instant, before anything changes that they count; see little.rs.
local function touch(k, at)
  local passed = at - k.at
  if passed <= 0 then
    return
  end
  k.at = at
  local share = passed / k.tau
  -- 1 - e^-share, without losing the digits of a small one.
  local gone = share < 1e-5 and share - share * share / 2 or 1 - math.exp(-share)
  local kept = 1 - gone
  local tau = k.tau / SECOND
  k.area = k.area * kept + k.in_flight * tau * gone
  k.time = k.time * kept + tau * gone
  k.arrived, k.completed = k.arrived * kept, k.completed * kept
end

-- A lease is no longer among those of a key.
local function forget_member(k, member, at)
  local permits = tonumber(member:match('^%d+', ID + 1))
  touch(k, at)
  k.live, k.in_flight, k.dirty = k.live - 1, k.in_flight - permits, true
  if k.live == 0 then
    -- Redis drops an empty set, and its expiry with it.
    k.goes, k.first = 0, EXACT
  end
  if member:sub(-1) == 'a' then
    call('ZREM', home .. 'a:' .. k.key, member)
  end
  return permits
end

-- Ends what is due, in the order in which it was due.
local function advance(k)
  if k.live == 0 or k.first > now then
    return
  end
  local due = call('ZRANGEBYSCORE', k.set, '-inf', now, 'WITHSCORES')
  for place = 1, #due, 2 do
    local permits = forget_member(k, due[place], tonumber(due[place + 1]))
    k.completed = k.completed + permits
  end
  if #due > 0 then
    call('ZREMRANGEBYSCORE', k.set, '-inf', now)
  end
  local next_due = call('ZRANGE', k.set, 0, 0, 'WITHSCORES')
  k.first, k.dirty = tonumber(next_due[2]) or EXACT, true
end

-- A key as it is now.
local function counter(key)
  local k = counters[key]
  if k then
    return k
  end
  k = { key = key, set = home .. 'z:' .. key }
  local text = call('GET', home .. 's:' .. key)
  if text then
    k.in_flight, k.live, k.first, k.goes, k.limit, k.promised, k.hold, k.seen, k.alpha, k.tau, k.at,
      k.area, k.time, k.arrived, k.completed, k.exposure, k.prior, k.early, k.ghost =
      unpack_from(STATE, text)
  else
    k.in_flight, k.live, k.first, k.goes, k.limit, k.promised = 0, 0, EXACT, 0, 0, 0
    k.hold, k.seen, k.alpha, k.tau, k.exposure, k.prior = 1, 0, 0.2, 2 * SECOND, 1, SECOND
    k.early, k.ghost, k.fresh = 2 * SECOND, 5 * SECOND, true
    k.at, k.area, k.time, k.arrived, k.completed = now, 0, 0, 0, 0
  end
  counters[key] = k
  if call('ZCARD', k.set) ~= k.live then
    recount(k)
  end
  advance(k)
  return k
end

-- Writes what changed.
local function save()
  for key, k in pairs(counters) do
    if k.dirty then
      local text = pack(STATE, k.in_flight, k.live, k.first, k.goes, k.limit, k.promised, k.hold,
        k.seen, k.alpha, k.tau, k.at, k.area, k.time, k.arrived, k.completed,
        k.exposure, k.prior, k.early, k.ghost)
      call('SET', home .. 's:' .. key, text, 'PX', life(max(now + REMEMBER_KEY, k.goes)))
    end
  end
end

-- Counts a lease.
local function add_member(k, member, permits, expires)
  call('ZADD', k.set, expires, member)
  k.live, k.in_flight, k.dirty = k.live + 1, k.in_flight + permits, true
  k.first = min(k.first, expires)
end

-- The set must outlive its leases; not extended for each of them.
local function keep_set(k, expires)
  if expires >= k.goes then
    k.goes, k.dirty = expires + REMEMBER_ENDED, true
    call('PEXPIRE', k.set, life(k.goes))
  end
end

-- Mean hold as hints see it: of finished leases, or more when those still held say so.
local function mean_hold(k)
  if k.exposure == 0 or k.area <= 0 then
    return k.hold
  end
  local unit = max(k.in_flight / max(k.live, 1), 1)
  return max(k.hold, k.area / max(k.completed, unit))
end

-- Seconds until so many permits more may be had below `allowed`; see algorithm/concurrency/hint.rs.
local function hint(k, item, permits)
  if item.limit == 0 then
    return item.drained / SECOND
  end
  local hold = mean_hold(k)
  local pace = hold / item.limit
  local promised = 0
  if item.booking and pace > 0 then
    promised = max(k.promised - now, 0) / SECOND / pace
  end
  local missing = k.in_flight + promised + (item.limit - item.allowed) + permits - item.limit
  missing = max(missing, 1)
  local wait = missing * pace
  if missing > k.in_flight + HAIR or k.live == 0 or wait <= (k.first - now) / SECOND then
    return wait
  end
  -- More than is out cannot come back by expiry alone.
  local back = 0
  local soonest = call('ZRANGE', k.set, 0, BOUND_STEPS - 1, 'WITHSCORES')
  for place = 1, #soonest, 2 do
    back = back + tonumber(soonest[place]:match('^%d+', ID + 1))
    if back + HAIR >= missing then
      return min(wait, (tonumber(soonest[place + 1]) - now) / SECOND)
    end
  end
  return wait
end
