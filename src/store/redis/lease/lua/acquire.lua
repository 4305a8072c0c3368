-- Requests for permits: the rate limits of the same request are decided in the same step.

-- The next arguments.
local at = 3
local function text()
  at = at + 1
  return ARGV[at]
end
local function number()
  return tonumber(text())
end
local function list(read)
  local values = {}
  for place = 1, number() do
    values[place] = read()
  end
  return values
end

-- Names of the rate limits' counters.
local function rate_keys()
  local names = {}
  for place = 2, #KEYS do
    names[place - 1] = KEYS[place]
  end
  return names
end

-- What decide.lua says to a message; whether it refuses to take what is asked for (of a look that
-- is for who reads the answer to find out); whether a calendar window is not known.
local function ask_rates(message)
  if message == '' then
    return '', false, false
  end
  local reply = decide_rates(rate_keys(), { message, now })
  if #reply == 8 then
    -- Nothing is that late: the clock was read before.
    return reply, false, true
  end
  local bits = reply:byte(9)
  return reply, bits % 8 >= 4, bits % 4 >= 2
end

local function read_item()
  local item = { key = text(), permits = number(), asked = number(), least = number() }
  item.limit, item.allowed = number(), number()
  local flags = number()
  item.shadow, item.booking, item.exposure = flags % 2 == 1, flags % 4 >= 2, flags >= 4 and 1 or 0
  item.prior, item.expected = number(), number()
  item.alpha, item.tau, item.drained = number(), number(), number()
  item.early_release, item.ghost = number(), number()
  return item
end

-- The counter of an item under the present version of its rule.
local function follow(item)
  local k = counter(item.key)
  if k.limit ~= item.limit or k.alpha ~= item.alpha or k.tau ~= item.tau
    or k.exposure ~= item.exposure or k.early ~= item.early_release or k.ghost ~= item.ghost then
    k.limit, k.alpha, k.tau, k.exposure = item.limit, item.alpha, item.tau, item.exposure
    k.early, k.ghost = item.early_release, item.ghost
    k.dirty = true
  end
  if k.seen == 0 and item.expected > 0 then
    k.hold, k.dirty = item.expected / SECOND, true
  elseif k.seen == 0 and (k.fresh or k.prior ~= item.prior) then
    k.hold, k.dirty = item.prior / SECOND, true
  end
  k.prior, k.fresh = item.prior, false
  touch(k, now)
  return k
end

local function is_same(items, held)
  if #items ~= #held then
    return false
  end
  for place, item in ipairs(items) do
    if item.key ~= held[place].key or item.asked ~= held[place].asked then
      return false
    end
  end
  return true
end

local function acquire()
  local decide, look = text(), text()
  local flags, naming, name = number(), number(), text()
  local holder, instance, request, owner = text(), text(), text(), text()
  local ttl, lifetime, default_ttl, bound = number(), number(), number(), number()
  local ids, adopt, items = list(text), list(text), list(read_item)
  local dry_run, partial, may_wait = flags % 2 == 1, flags % 4 >= 2, flags % 8 >= 4
  local again, draining, impossible = flags % 16 >= 8, flags % 32 >= 16, flags >= 32

  local reply = { code = 'N', rates = '', fence = 0, expires_in = 0, ended = 0, ids = '', told = -1 }
  local function answer(code)
    reply.code = code
    local result = { string.format('%.0f', now), reply.code, reply.rates,
      string.format('%.0f', reply.fence), string.format('%.0f', reply.expires_in), reply.ended,
      reply.ids, string.format('%.0f', reply.told) }
    for _, item in ipairs(items) do
      local k = counters[item.key]
      if k then
        touch(k, now)
        local throughput = k.time > 0 and k.completed / k.time or 0
        result[#result + 1] = string.format('%.0f %.17g %.17g %.0f %d %.17g', k.in_flight,
          mean_hold(k), throughput, item.granted or 0, item.short or 0, item.wait or 0)
      else
        result[#result + 1] = ''
      end
    end
    save()
    return result
  end
  local function replay(lease)
    for place, item in ipairs(items) do
      counter(item.key)
      item.granted = lease.items[place].permits
    end
    reply.ids, reply.expires_in, reply.fence = lease.id, lease.expires - now, lease.fence
    if not dry_run then
      lease.claims = lease.claims + 1
      write_lease(lease)
    end
    return answer('R')
  end

  -- Whoever gave up before this arrived wants no lease any more.
  for _, id in ipairs(ids) do
    if call('EXISTS', home .. 'l:' .. id) == 1 then
      return answer('V')
    end
  end
  if naming == ISSUED then
    local known = request ~= '' and call('GET', home .. 'r:' .. request)
    local lease = known and read_lease(known)
    if lease and lease.state == LIVE then
      return is_same(items, lease.items) and replay(lease) or answer('C')
    elseif lease then
      reply.ended, reply.ids = lease.state, lease.id
      return answer('E')
    end
    for _, id in ipairs(adopt) do
      lease = read_lease(id)
      if lease and lease.state == LIVE and lease.naming == ISSUED and lease.holder == holder
        and is_same(items, lease.items) then
        if not dry_run and lease.owner ~= owner then
          lease.owner = owner
          move_expiry(lease, min(now + ttl, lease.latest))
        end
        return replay(lease)
      end
    end
  end
  if impossible then
    for _, item in ipairs(items) do
      counter(item.key)
    end
    return answer('I')
  end
  for _, item in ipairs(items) do
    if follow(item).live >= bound then
      return answer('F')
    end
  end
  if draining then
    return answer('D')
  end

  -- Leases of this name that are there already, or were released before they were asked for.
  local held, open = {}, #items
  if naming == NAMED then
    for _, item in ipairs(items) do
      local known = call('GET', home .. 'n:' .. item.key .. name)
      local lease = known and read_lease(known)
      item.held = lease and lease.state == LIVE and lease
      item.early = not item.held and has_mark(home .. 'e:' .. item.key .. name)
      if item.held then
        held[#held + 1] = item.held
      end
      if item.held or item.early then
        open = open - 1
      end
    end
    if #held > 0 and open == 0 then
      for _, lease in ipairs(held) do
        if not dry_run then
          lease.claims = lease.claims + 1
          write_lease(lease)
        end
        reply.ids, reply.expires_in = reply.ids .. lease.id, lease.expires - now
      end
      return answer('R')
    end
  end

  local slot = request ~= '' and call('GET', home .. 'b:' .. request)
  if not dry_run and not again and not slot then
    for _, item in ipairs(items) do
      local k = counters[item.key]
      k.arrived, k.dirty = k.arrived + item.permits, true
    end
  end
  local short = 0
  for _, item in ipairs(items) do
    local k = counters[item.key]
    if item.held or item.early then
      -- Nothing is to be taken.
    elseif item.limit == 0 or k.in_flight + item.permits > item.allowed then
      item.short = item.shadow and 2 or 1
      if not item.shadow then
        short = short + 1
      end
    end
  end
  if partial and short == 1 and #items == 1 and items[1].limit > 0 then
    local item = items[1]
    local free = item.allowed - counters[item.key].in_flight
    if free >= item.least and free > 0 then
      item.permits, item.short, short = free, 0, 0
    end
  end

  local rate_refuses, unknown
  local takes = short == 0 and not dry_run
  reply.rates, rate_refuses, unknown = ask_rates(takes and decide or look)
  rate_refuses = rate_refuses and takes
  if unknown then
    counters = {}
    return answer('U')
  end
  if short == 0 and not rate_refuses then
    if dry_run then
      return answer('T')
    end
    reply.fence, reply.expires_in = next_fence(), ttl
    local latest, expires = now + lifetime, now + min(ttl, lifetime)
    local next_id, all = 0, {}
    for _, item in ipairs(items) do
      if item.early then
        call('DEL', home .. 'e:' .. item.key .. name)
      elseif not item.held then
        item.granted = item.permits
        if naming == ISSUED and next_id == 1 then
          all[1].items[#all[1].items + 1] = item
        else
          next_id = next_id + 1
          all[next_id] = { id = ids[next_id], state = LIVE, naming = naming, granted = now,
            expires = expires, latest = latest, ttl = default_ttl, claims = 1, holder = holder,
            instance = instance, name = naming == ISSUED and request or name, owner = owner,
            items = { item }, fence = reply.fence }
        end
      end
    end
    for _, lease in ipairs(all) do
      enter(lease)
      reply.ids = reply.ids .. lease.id
    end
    if next_id == 0 then
      reply.fence, reply.expires_in = 0, 0
    end
    if slot then
      -- What was booked and not needed is free again, also of keys that were asked for then.
      local due = unpack_from('<d', slot)
      for place = 9, #slot, 40 do
        local k = counter(slot:sub(place, place + 31))
        if due > now then
          k.promised, k.dirty = max(k.promised - unpack_from('<d', slot, place + 32), now), true
        end
      end
      call('DEL', home .. 'b:' .. request)
    end
    return answer('G')
  end
  if may_wait and not rate_refuses then
    return answer('W')
  end

  -- Refused: when to come back.
  local longest = -1
  for _, item in ipairs(items) do
    if item.short == 1 then
      item.wait = hint(counters[item.key], item, item.permits)
      longest = max(longest, item.wait)
    end
  end
  if longest >= 0 then
    local wait = max(longest * SECOND, 1000)
    local due = slot and unpack_from('<d', slot) or 0
    if due > now and not dry_run then
      reply.told = max(due - now, 1000)
    else
      reply.told = wait
      local booked = {}
      for _, item in ipairs(items) do
        local k = counters[item.key]
        if not dry_run and item.short == 1 and item.booking and item.limit > 0 then
          local length = item.permits * mean_hold(k) / item.limit * SECOND
          k.promised, k.dirty = max(k.promised, now) + length, true
          booked[#booked + 1] = item.key .. pack('<d', length)
        end
      end
      if request ~= '' and not dry_run then
        local packed = pack('<d', now + wait) .. table.concat(booked)
        call('SET', home .. 'b:' .. request, packed, 'PX', life(now + wait + REMEMBER_SLOT))
      end
    end
  end
  -- A release will follow this refusal: it must not be taken for an early one.
  if not dry_run then
    for _, item in ipairs(items) do
      if item.held or item.early then
        -- Its release belongs to what is there.
      elseif naming == NAMED then
        set_mark(home .. 'f:' .. item.key .. name, now + item.ghost)
      elseif naming == ANONYMOUS then
        add_ghost(item.key)
      end
    end
  end
  return answer('N')
end
