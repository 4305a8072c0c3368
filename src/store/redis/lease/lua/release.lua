-- How leases end, or live on. Statuses: 1 to 4 as a lease ended before, 0 done now.

local UNKNOWN, NOT_HOLDER, DONE, CAPPED = 10, 11, 0, 1

-- Ends a live lease as its holder wants, and learns from it. `held` is negative when untold.
local function finish_as(lease, success, held)
  local seen = now - lease.granted
  if held < 0 or held > seen then
    held = seen
  end
  finish(lease, RELEASED)
  if success then
    for _, item in ipairs(lease.items) do
      local k = counter(item.key)
      k.hold = k.hold + k.alpha * (held / SECOND - k.hold)
      k.seen, k.dirty = 1, true
    end
  end
  return DONE, held
end

local function status_of(lease)
  return lease.state, lease.state == EXPIRED and now - lease.expires or 0
end

-- A lease that its holder may end or renew, or why not.
local function find(id, holder, trusted)
  local lease = read_lease(id)
  local secret = lease and lease.naming ~= ISSUED and lease.state == LIVE
  if not lease or secret or lease.state == VOID then
    -- The id of a lease that its caller named was never told to anybody.
    return nil, UNKNOWN
  end
  if lease.holder ~= '' and not trusted and lease.holder ~= holder then
    return nil, NOT_HOLDER
  end
  return lease
end

-- Of an ended lease its keys are told, for those who wait for them.
local function push(result, status, value, lease)
  local line = string.format('%d %.0f', status, value)
  for _, item in ipairs(lease and lease.items or {}) do
    line = line .. ' ' .. item.key
  end
  result[#result + 1] = line
end

-- Of each: id, holder, whether the id is enough, success, held.
local function release()
  local result = { string.format('%.0f', now) }
  for _ = 1, number() do
    local id, holder, trusted = text(), text(), number() == 1
    local success, held = number() == 1, number()
    local lease, status = find(id, holder, trusted)
    local value = 0
    if lease and lease.state == LIVE then
      status, value = finish_as(lease, success, held)
    elseif lease then
      status, value = status_of(lease)
    end
    push(result, status, value, status == DONE and lease)
  end
  save()
  return result
end

-- Of each: id, holder, whether the id is enough, TTL (negative: the rule's).
local function renew()
  local result = { string.format('%.0f', now) }
  for _ = 1, number() do
    local id, holder, trusted, ttl = text(), text(), number() == 1, number()
    local lease, status = find(id, holder, trusted)
    if lease and lease.state == LIVE then
      if ttl < 0 then
        ttl = lease.ttl
      end
      local wanted = now + ttl
      local expires = max(min(wanted, lease.latest), lease.expires)
      local left = expires - now
      if lease.owner ~= '' then
        -- The process that has the stream keeps it; more than was asked for is no promise.
        left = min(lease.latest - now, ttl)
      else
        move_expiry(lease, expires)
      end
      result[#result + 1] = string.format('%d %.0f', wanted > lease.latest and CAPPED or DONE, left)
    elseif lease then
      result[#result + 1] = string.format('%d 0', 20 + lease.state)
    else
      push(result, status, 0)
    end
  end
  save()
  return result
end

-- By key and name; an empty name is the oldest lease without one.
local function release_by()
  local key, name, success, held = text(), text(), number() == 1, number()
  local result = { string.format('%.0f', now) }
  local status, value = UNKNOWN, 0
  local k = counter(key)
  touch(k, now)
  if name == '' then
    if not take_ghost(key) then
      local oldest = call('ZRANGE', home .. 'a:' .. key, 0, 0)
      local lease = oldest[1] and read_lease(oldest[1]:sub(1, ID))
      if lease and lease.state == LIVE then
        status, value = finish_as(lease, success, held)
      elseif oldest[1] then
        call('ZREM', home .. 'a:' .. key, oldest[1])
      end
    end
  else
    local known = call('GET', home .. 'n:' .. key .. name)
    local lease = known and read_lease(known)
    if lease and lease.state == LIVE then
      status, value = finish_as(lease, success, held)
    elseif take_mark(home .. 'f:' .. key .. name) then
      status = UNKNOWN
    elseif lease then
      status, value = status_of(lease)
    else
      set_mark(home .. 'e:' .. key .. name, now + k.early)
    end
  end
  push(result, status, value)
  save()
  return result
end

-- Takes a grant or a replay back whose answer never left; a lease lives on while another call was
-- answered with it. Of a lease that nobody knows yet it leaves a mark: its request may still come.
local function undo()
  local refund, timed_out, ids = text(), number() == 1, list(text)
  local undone = 0
  for _, id in ipairs(ids) do
    local lease = read_lease(id)
    if not lease then
      local void = { id = id, state = VOID, naming = ISSUED, granted = now, expires = now,
        latest = now, ttl = 0, claims = 0, fence = 0, holder = '', instance = '', name = '', owner = '',
        items = {} }
      write_lease(void)
    elseif lease.state == LIVE then
      lease.claims = lease.claims - 1
      if lease.claims > 0 then
        write_lease(lease)
      else
        undone = undone + 1
        take_out(lease, false)
        lease.state = VOID
        write_lease(lease)
        forget(id)
        for _, item in ipairs(lease.items) do
          if lease.naming == NAMED then
            set_mark(home .. 'f:' .. item.key .. lease.name, now + counter(item.key).ghost)
          elseif lease.naming == ANONYMOUS and timed_out then
            add_ghost(item.key)
          end
        end
      end
    end
  end
  -- Granted without a lease: its release had come before.
  if (undone > 0 or #ids == 0) and refund ~= '' then
    ask_rates(refund)
  end
  save()
  return { string.format('%.0f', now), undone }
end

-- Leases of a stream that lives: theirs is the stream's life. Tells which of them are no more.
local function keep()
  local owner, ttl, ids = text(), number(), list(text)
  local gone = {}
  for place, id in ipairs(ids) do
    local lease = read_lease(id)
    if lease and lease.state == LIVE and lease.owner == owner then
      move_expiry(lease, max(lease.expires, min(now + ttl, lease.latest)))
    else
      gone[#gone + 1] = place
    end
  end
  save()
  return gone
end

-- Ends the leases of a stream that is gone, unless somebody else has them by now.
local function leave()
  local owner, by, ids = text(), number(), list(text)
  local ended = 0
  for _, id in ipairs(ids) do
    local lease = read_lease(id)
    if lease and lease.state == LIVE and lease.owner == owner then
      finish(lease, by)
      ended = ended + 1
    end
  end
  save()
  return ended
end

-- Leases that a process granted on its own while it did not reach us. They count from now on, also
-- above the limit.
local function register()
  for _ = 1, number() do
    local lease = { id = text(), state = LIVE, naming = number(), granted = now - number(),
      expires = now + number(), latest = now + number(), ttl = number(), claims = 1,
      holder = text(), instance = text(), name = text(), owner = text(), fence = now }
    lease.items = list(function()
      return { key = text(), permits = number(), asked = number() }
    end)
    if call('EXISTS', home .. 'l:' .. lease.id) == 0 then
      enter(lease)
    end
  end
  save()
  return 'OK'
end

-- How keys stand; writes nothing.
local function peek()
  local result = { string.format('%.0f', now) }
  for place, key in ipairs(list(text)) do
    local ghosts = call('LLEN', home .. 'g:' .. key)
    local text_of = call('GET', home .. 's:' .. key)
    if not text_of then
      result[place + 1] = ''
    else
      local in_flight, live, first, _, _, promised, hold, _, _, tau, at_, area, time, arrived,
        completed, exposure = unpack_from(STATE, text_of)
      local k = { hold = hold, tau = tau, at = at_, area = area, time = time, arrived = arrived,
        completed = completed, exposure = exposure, live = live, in_flight = in_flight }
      if first <= now or call('ZCARD', home .. 'z:' .. key) ~= live then
        -- Something is due: the kept sum is not what it will be.
        local members = call('ZRANGEBYSCORE', home .. 'z:' .. key,
          '(' .. string.format('%.0f', now), '+inf')
        k.live, k.in_flight = #members, 0
        for _, member in ipairs(members) do
          k.in_flight = k.in_flight + tonumber(member:match('^%d+', ID + 1))
        end
      end
      touch(k, now)
      result[place + 1] = string.format('%.0f %.0f %.0f %.17g %.17g %.17g %.17g %d', k.in_flight,
        k.live, max(promised - now, 0), mean_hold(k), k.arrived, k.completed, k.time, ghosts)
        .. string.format(' %.17g', k.area)
    end
  end
  return result
end

-- The leases of keys that end soonest, at most so many of each: for each key their number, then each
-- with its holder; writes nothing.
local function peek_leases()
  local most = number()
  local result = { string.format('%.0f', now) }
  for _, key in ipairs(list(text)) do
    local head, count = #result + 1, 0
    result[head] = ''
    local members = call('ZRANGEBYSCORE', home .. 'z:' .. key, '(' .. string.format('%.0f', now),
      '+inf', 'LIMIT', 0, most)
    for _, member in ipairs(members) do
      local id = member:sub(1, ID)
      local lease = read_lease(id)
      if lease and lease.state == LIVE then
        local permits = member:match('^%d+', ID + 1)
        local behind = #result
        result[behind + 1] = string.format('%s %s %.0f %.0f %d', id, permits, now - lease.granted,
          lease.expires - now, lease.owner == '' and 0 or 1)
        result[behind + 2], result[behind + 3] = lease.holder, lease.instance
        count = count + 1
      end
    end
    result[head] = string.format('%d', count)
  end
  return result
end

-- Estimates back to their prior; leases are taken back only when asked for.
local function reset()
  local key, revoke = text(), number() == 1
  if call('EXISTS', home .. 's:' .. key) == 0 then
    return 0
  end
  local k = counter(key)
  k.seen, k.hold, k.promised = 0, k.prior / SECOND, 0
  k.area, k.time, k.arrived, k.completed = 0, 0, 0, 0
  k.at, k.dirty = now, true
  if revoke then
    for _, member in ipairs(call('ZRANGE', k.set, 0, -1)) do
      local lease = read_lease(member:sub(1, ID))
      if lease and lease.state == LIVE then
        finish(lease, REVOKED)
      end
    end
  end
  save()
  return 1
end

local latest = tonumber(ARGV[2])
if now > latest then
  return { string.format('%.0f', now), 'L' }
end
local operations = { acquire = acquire, release = release, release_by = release_by, renew = renew,
  undo = undo, keep = keep, leave = leave, register = register, peek = peek,
  peek_leases = peek_leases, reset = reset }
return operations[ARGV[1]]()
