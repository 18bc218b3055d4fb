"""The small world of orders: people, cities, things, amounts and dates, and which of them are held out.

Held-out values are chosen by a hash, so that the training chats and the held-out chats agree on them without a list: no
held-out name, city, thing, amount or date appears in the training chats.
"""

import zlib

NAMES = """Abbott Acosta Adler Aguilar Akhtar Albrecht Almeida Alvarez Andersen Antonelli Arnold Aziz Bailey Baker Barnes
Bauer Becker Bellini Bennett Berger Bianchi Bishop Blanchard Bogdanov Boyd Brandt Brooks Bryant Burke Byrne Cabrera
Caldwell Campbell Carlsson Carver Castillo Chandra Chapman Chavez Clarke Coleman Conti Cooper Costa Crawford Dalton
Daniels Delgado Diaz Dixon Dogan Donnelly Dubois Duncan Eklund Elliott Engel Eriksen Esposito Evans Farrell Ferrari
Fischer Fletcher Fontaine Foster Fournier Franco Friedman Fuchs Fuentes Gallagher Garcia Gibson Gomez Gordon Graham
Greco Griffin Gruber Gupta Haas Hahn Hansen Harper Harris Hartmann Hayashi Henderson Herrera Hoffman Holmes Horvat
Hughes Hussain Ibrahim Ivanov Jacobs Jansen Jenkins Jensen Johansson Jordan Kaplan Karlsson Kaur Keller Kelly Kennedy
Khan Kimura Klein Koch Kovacs Kowalski Kraus Kumar Lambert Larsen Laurent Lehmann Leone Lindgren Lombardi Lopez Lund
Maier Malik Mancini Marino Marsh Martin Mason Matthews Mendez Mendoza Mercier Meyer Mitchell Moreau Moreno Morgan
Morris Mueller Murphy Murray Nagy Nakamura Navarro Nielsen Nilsson Novak Nowak Olsen Ortega Ortiz Osman Owens Palmer
Parker Patel Pavlov Pearson Pedersen Pereira Perkins Petrov Pham Phillips Popescu Porter Powell Quinn Ramirez Ramos
Reid Reyes Ricci Richter Rivera Roberts Robinson Romano Rossi Roth Rousseau Russo Sanchez Santos Sato Schmidt
Schneider Schubert Shah Sharma Silva Simmons Singh Sokolov Sousa Spencer Stein Stewart Sullivan Suzuki Svensson Tanaka
Taylor Thompson Torres Turner Vargas Vasquez Vega Vogel Wagner Walker Wallace Walsh Watson Weber Webster Weiss Werner
Wheeler Winkler Winter Wright Yamada Yilmaz Zeller Ziegler Zimmer""".split()
CITIES = """Aachen Aarhus Alicante Amman Amsterdam Ankara Antwerp Athens Auckland Baltimore Bangkok Barcelona Basel Bath
Beirut Belfast Belgrade Bergen Berlin Bilbao Bogota Bologna Bonn Bordeaux Boston Brasov Bratislava Bremen Brisbane
Bristol Brussels Bucharest Budapest Cairo Calgary Cambridge Canberra Cardiff Casablanca Catania Chester Chicago Cologne
Copenhagen Cordoba Cork Cracow Dallas Debrecen Delft Delhi Denver Derby Dover Dresden Dublin Dundee Durban Durham
Edinburgh Exeter Florence Frankfurt Galway Gdansk Geneva Genoa Ghent Girona Glasgow Gothenburg Granada Graz Halifax
Hamburg Hanover Helsinki Houston Istanbul Izmir Jakarta Kiel Kyoto Lagos Lausanne Leeds Leicester Leiden Leipzig Lima
Limerick Linz Lisbon Liverpool Ljubljana London Lucerne Lugano Lyon Madrid Malaga Malmo Manchester Marseille Melbourne
Memphis Milan Montreal Munich Nairobi Nantes Naples Newcastle Nice Norwich Odense Oporto Osaka Oslo Ottawa Oxford
Palermo Paris Parma Perth Pisa Plymouth Prague Quebec Reading Riga Rome Rotterdam Salzburg Santiago Sarajevo Seattle
Seville Sofia Stockholm Strasbourg Stuttgart Sydney Tallinn Tampere Tartu Tokyo Toledo Toronto Toulouse Trieste Tunis
Turin Utrecht Valencia Vancouver Venice Verona Vienna Vilnius Warsaw Wellington York Zagreb Zurich""".split()
THINGS = """armchairs backpacks balls baskets bells belts benches blankets boots bottles bowls boxes bracelets brushes
buckets cables cameras candles carpets chairs clocks coats cups curtains cushions desks doors drums envelopes forks
frames glasses gloves guitars hammers hats helmets jackets jars kettles keyboards knives ladders lamps lanterns locks
magnets maps mattresses mirrors mugs necklaces needles notebooks ovens paintings pans pencils phones pillows pipes
plates posters radios ribbons rings ropes rugs rulers saddles saucers saws scarves scissors screens shelves shirts
shovels sofas speakers spoons stools suitcases sweaters tables tents tickets tiles towels toys trays umbrellas vases
violins wallets wheels windows""".split()
MONTHS = """January February March April May June July August September October November December""".split()


def is_held_out(value):
    """True for about one value in six."""
    return zlib.crc32(str(value).encode()) % 6 == 0


def draw(rng, make, held_out=False):
    """A value of make(rng) that is held out, or one that is not."""
    while True:
        value = make(rng)
        if is_held_out(value) == held_out:
            return value


def name(rng):
    return rng.choice(NAMES)


def city(rng):
    return rng.choice(CITIES)


def things(rng):
    return rng.choice(THINGS)


def amount(rng):
    return f"{rng.randint(5, 199)}.{5 * rng.randint(0, 19):02d}"


def date(rng):
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"
