-- Leases, alive and ended.

local LIVE, RELEASED, EXPIRED, SESSION_LOST, REVOKED, VOID = 0, 1, 2, 3, 4, 5
local ISSUED, NAMED, ANONYMOUS = 0, 1, 2
-- State, naming, granted, expires, latest, TTL of a renewal that names none, claims, fence, and the lengths
-- of holder, instance, request or name, and owner; then those texts and the items.
local LEASE = '<BBddddddHHHHB'
local LEASE_BYTES = 2 + 6 * 8 + 4 * 2 + 1
local KEY_BYTES = 32
local ITEM_BYTES = KEY_BYTES + 2 * 8

local function write_lease(lease)
  local parts = {
    pack(LEASE, lease.state, lease.naming, lease.granted, lease.expires, lease.latest, lease.ttl,
      lease.claims, lease.fence, #lease.holder, #lease.instance, #lease.name, #lease.owner, #lease.items),
    lease.holder, lease.instance, lease.name, lease.owner,
  }
  for _, item in ipairs(lease.items) do
    parts[#parts + 1] = item.key .. pack('<dd', item.permits, item.asked)
  end
  local remembered = lease.state == LIVE and lease.expires or now
  local left = life(remembered + REMEMBER_ENDED)
  call('SET', home .. 'l:' .. lease.id, table.concat(parts), 'PX', left)
  if lease.name == '' then
    return
  end
  -- It is found under its other name as long as it is known.
  local alias = home .. 'r:' .. lease.name
  if lease.naming == NAMED then
    alias = home .. 'n:' .. lease.items[1].key .. lease.name
  end
  call('SET', alias, lease.id, 'PX', left)
end

-- A lease by its id; nil when nobody knows it (any more).
local function read_lease(id)
  local text = call('GET', home .. 'l:' .. id)
  if not text then
    return nil
  end
  local lease = { id = id, items = {} }
  local holder, instance, name, owner, count
  lease.state, lease.naming, lease.granted, lease.expires, lease.latest, lease.ttl, lease.claims,
    lease.fence, holder, instance, name, owner, count = unpack_from(LEASE, text)
  local from = LEASE_BYTES + 1
  local function part(length)
    from = from + length
    return text:sub(from - length, from - 1)
  end
  lease.holder, lease.instance = part(holder), part(instance)
  lease.name, lease.owner = part(name), part(owner)
  for place = 1, count do
    local key = text:sub(from, from + KEY_BYTES - 1)
    local permits, asked = unpack_from('<dd', text, from + KEY_BYTES)
    lease.items[place] = { key = key, permits = permits, asked = asked }
    from = from + ITEM_BYTES
  end
  if lease.state == LIVE and lease.expires <= now then
    lease.state = EXPIRED
    if lease.expires + REMEMBER_ENDED <= now then
      return nil
    end
  end
  return lease
end

local function member_of(lease, item)
  local member = string.format('%s%.0f', lease.id, item.permits)
  return lease.naming == ANONYMOUS and member .. 'a' or member
end

-- Counts a lease in all its keys.
local function enter(lease)
  for _, item in ipairs(lease.items) do
    local k = counter(item.key)
    touch(k, now)
    local member = member_of(lease, item)
    add_member(k, member, item.permits, lease.expires)
    keep_set(k, lease.expires)
    if lease.naming == ANONYMOUS then
      local nameless = home .. 'a:' .. item.key
      call('ZADD', nameless, lease.fence, member)
      call('PEXPIRE', nameless, life(k.goes))
    end
  end
  write_lease(lease)
end

-- Forgets an ended lease and its other name.
local function forget(id)
  local lease = read_lease(id)
  if not lease or lease.state == LIVE then
    return
  end
  call('DEL', home .. 'l:' .. id)
  if lease.name ~= '' then
    local alias = home .. 'r:' .. lease.name
    if lease.naming == NAMED then
      alias = home .. 'n:' .. lease.items[1].key .. lease.name
    end
    if call('GET', alias) == id then
      call('DEL', alias)
    end
  end
end

-- The memory of an ended lease counts against its first key, so that it is bounded by what the
-- limit lets in.
local function remember_ended(lease)
  local first = counter(lease.items[1].key)
  local list = home .. 'd:' .. first.key
  local length = call('RPUSH', list, lease.id)
  if length > max(4 * first.limit, 16) then
    forget(call('LPOP', list))
  end
  call('PEXPIRE', list, life(now + REMEMBER_ENDED))
end

-- Takes a live lease out of its keys.
local function take_out(lease, completed)
  for _, item in ipairs(lease.items) do
    local k = counter(item.key)
    local member = member_of(lease, item)
    if call('ZREM', k.set, member) == 1 then
      forget_member(k, member, now)
      if completed then
        k.completed = k.completed + item.permits
      end
    end
  end
end

-- Ends a live lease. It is known for a while how.
local function finish(lease, by)
  take_out(lease, true)
  lease.state = by
  write_lease(lease)
  remember_ended(lease)
end

-- Moves a live lease to another expiry.
local function move_expiry(lease, expires)
  if expires == lease.expires then
    return
  end
  lease.expires = expires
  for _, item in ipairs(lease.items) do
    local k = counter(item.key)
    call('ZADD', k.set, 'XX', expires, member_of(lease, item))
    keep_set(k, expires)
    if expires < k.first then
      k.first, k.dirty = expires, true
    end
  end
  write_lease(lease)
end

-- A number that grows with every grant, also when it was forgotten meanwhile.
local function next_fence()
  local fence = max(now, (tonumber(call('GET', home .. 'q')) or 0) + 1)
  call('SET', home .. 'q', fence, 'PX', life(now + REMEMBER_KEY))
  return fence
end

-- A mark that is valid until an instant of its own.
local function set_mark(key, till)
  call('SET', key, till, 'PX', life(till))
end

local function has_mark(key)
  return (tonumber(call('GET', key)) or 0) > now
end

local function take_mark(key)
  local there = has_mark(key)
  if there then
    call('DEL', key)
  end
  return there
end

local function add_ghost(key)
  local ghosts = home .. 'g:' .. key
  local till = now + counter(key).ghost
  if call('RPUSH', ghosts, till) > MOST_GHOSTS then
    call('LPOP', ghosts)
  end
  call('PEXPIRE', ghosts, life(till))
end

-- A release came: whether it belongs to a refusal.
local function take_ghost(key)
  local ghosts = home .. 'g:' .. key
  local till = call('LPOP', ghosts)
  while till do
    if tonumber(till) > now then
      return true
    end
    till = call('LPOP', ghosts)
  end
  return false
end
